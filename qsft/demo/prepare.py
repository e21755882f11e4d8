"""The demo's models for a recipe: built when they are missing, in a process of their own.

A recipe's process has its own accelerator state, perhaps a GPU and other processes beside it; pretraining inside it
would leave its mark there. Under a launcher the first process of a machine builds and the others wait.
"""

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from qsft.processes import local_rank

if TYPE_CHECKING:
    from qsft.demo.foundation import DemoModels

POLL_SECONDS = 0.5
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "ACCELERATE_", "FSDP_", "TORCHELASTIC_", "GROUP_", "ROLE_")


def demo_models(seed: int = 0) -> "DemoModels":
    """The base and the teacher of a seed, built now (about a minute) if they are not kept from an earlier run."""
    from qsft.demo.foundation import places
    from qsft.demo.kept import is_intact
    from qsft.demo.scenario import Scenario

    models = places(Scenario(seed=seed))
    if not all(map(is_intact, models)) and local_rank() == 0:
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

    from qsft.demo.foundation import make_models
    from qsft.demo.scenario import Scenario
    from qsft.demo.training import Phases
    from qsft.progress import quiet_libraries

    with quiet_libraries():
        make_models(Scenario(seed=int(sys.argv[1])), Phases(Console(stderr=True)))


if __name__ == "__main__":
    main()
