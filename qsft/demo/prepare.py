"""The demo's models for a recipe: built when they are missing, in a process of their own.

A recipe's process has its own accelerator state, perhaps a GPU and other processes beside it; pretraining inside it
would leave its mark there. Under a launcher the first process of a machine builds and the others wait.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

POLL_SECONDS = 0.5
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "ACCELERATE_", "FSDP_", "TORCHELASTIC_", "GROUP_", "ROLE_")


class DemoModels(NamedTuple):
    """Directories of the base and of the teacher, each with its tokenizer."""

    base: Path
    teacher: Path


def demo_models(seed: int = 0) -> DemoModels:
    """The base and the teacher of a seed, built now (about a minute) if they are not kept from an earlier run."""
    from qsft.demo.models import base_path, teacher_path
    from qsft.demo.settings import Settings
    from qsft.demo.store import is_intact

    settings = Settings(seed=seed)
    models = DemoModels(base_path(settings), teacher_path(settings))
    if all(map(is_intact, models)):
        return models
    if os.environ.get("LOCAL_RANK", "0") == "0":
        environment = {key: value for key, value in os.environ.items() if not key.startswith(LAUNCHER)}
        done = subprocess.run([sys.executable, "-m", "qsft.demo.prepare", str(seed)], env=environment, check=False)
        if done.returncode:
            raise ValueError("the demo's models could not be built; the reason stands above.")
    parent = os.getppid()
    while not all(map(is_intact, models)):
        if os.getppid() != parent:  # the launcher is gone, and with it whoever was building
            raise ValueError("the demo's models did not appear: the process that builds them ended.")
        time.sleep(POLL_SECONDS)
    return models


def main() -> None:
    """Build the models of the seed that is the first argument."""
    from rich.console import Console

    from qsft.demo.models import make_base, make_teacher
    from qsft.demo.progress import Phases, quiet_libraries
    from qsft.demo.settings import Settings

    settings, phases = Settings(seed=int(sys.argv[1])), Phases(Console(stderr=True))
    with quiet_libraries():
        make_teacher(settings, make_base(settings, phases), phases)


if __name__ == "__main__":
    main()
