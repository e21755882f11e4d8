"""A recipe is one flat file that is YAML and Python at once; this room reads it, plans it and runs it.

accelerate launch recipes/X.yaml --key value     ends in launch(__file__), the recipe's last line
qsft train recipes/X.yaml --key value            ends in train(read_recipe(…))
"""

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from qsft.processes import exit_process

PACKAGED = Path(__file__).parent / "files"  # the recipes that come with qsft, and their launch configurations


def stay_offline_without_hub() -> None:
    """The hub's libraries would retry for half a minute; call this before they are imported."""
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        if not getproxies():
            socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def launch(file: str) -> None:
    from qsft.recipe.recipe_file import read_recipe
    from qsft.recipe.run import train

    try:
        train(read_recipe(file, sys.argv[1:]))
    except (ValueError, OSError) as error:
        # A message that says what, why and what to do needs no traceback above it.
        print(f"qsft: {error}", file=sys.stderr)
        exit_process(2)
    exit_process(0)
