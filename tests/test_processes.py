"""A process of several leaves with its own code, after what was registered for exit, and without finalization."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import atexit, sys
from qsft.processes import exit_process

class Finalized:
    def __del__(self):
        print("finalized")

sys.modules["kept"] = Finalized()
atexit.register(print, "at exit")
print("out", end="")
exit_process(3)
"""


@pytest.mark.parametrize(("processes", "printed"), [("1", "outat exit\nfinalized\n"), ("2", "outat exit\n")])
def test_only_a_single_process_is_finalized(processes, printed):
    environment = {**os.environ, "WORLD_SIZE": processes}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stdout == printed
