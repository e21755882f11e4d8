"""A recipe is one flat file that is YAML and Python at once. This subpackage reads it, plans it and runs it.

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


def packaged_directory() -> Path:
    """Return the directory of the recipes that come with qsft: inside the installed package, or in the checkout."""
    installed = Path(__file__).parent / "files"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "recipes"


def stay_offline_without_hub() -> None:
    """Set HF_HUB_OFFLINE where the hub cannot be reached: its libraries would retry for half a minute.

    Call it before they are imported.
    """
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    if getproxies():
        return
    try:
        socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def launch(file: str) -> None:
    """Train the recipe in a file with the options of this process; the last line of every recipe calls it."""
    from qsft.recipe.stopping import StopRequest, run_until_stopped
    from qsft.redaction import redact_text

    def read_and_train(stop: StopRequest) -> None:
        from qsft.recipe.recipe_file import read_recipe
        from qsft.recipe.run import train

        train(read_recipe(Path(file), sys.argv[1:]), stop)

    try:
        run_until_stopped(read_and_train)
    except (ValueError, OSError) as error:
        print(f"qsft: {redact_text(str(error))}", file=sys.stderr)
        exit_process(2)
    except KeyboardInterrupt:
        exit_process(130)
    exit_process(0)
