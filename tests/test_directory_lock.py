"""Two processes do not write to one directory at once, and a process that has ended holds nothing."""

import os
import signal
import subprocess
import sys

import pytest

from qsft.directory_lock import hold_directory

HOLD = """\
import os
import sys
import time
from pathlib import Path
from qsft.directory_lock import hold_directory

with hold_directory(Path(sys.argv[1]), "Wait."):
    if sys.argv[2:] == ["fork"] and os.fork() == 0:
        print("held", flush=True)  # here, and not in the parent: the child has run what a fork runs in it
        time.sleep(60)
        os._exit(0)
    if sys.argv[2:] == []:
        print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path):
    """Another process that holds tmp_path / "run"."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_directory_that_another_process_holds_is_named(other_process, tmp_path):
    message = r"another process is writing to .*run.* Wait\."
    with pytest.raises(ValueError, match=message), hold_directory(tmp_path / "run", "Wait."):
        pass
    with hold_directory(tmp_path / "elsewhere", "Wait."):
        pass


def test_a_symbolic_link_is_the_same_directory(other_process, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with pytest.raises(ValueError, match="another process is writing"), hold_directory(tmp_path / "link", "Wait."):
        pass


def test_a_killed_process_holds_nothing(other_process, tmp_path):
    other_process.kill()
    other_process.wait()
    with hold_directory(tmp_path / "run", "Wait."):
        assert list((tmp_path / "run").iterdir()) == []


def test_a_forked_child_that_outlives_a_killed_process_holds_nothing(tmp_path):
    """As a worker of a data loader does for some seconds."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run"), "fork"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        process.kill()
        process.wait()
        try:
            with hold_directory(tmp_path / "run", "Wait."):
                pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_one_process_may_hold_a_directory_twice(tmp_path):
    for _ in range(2):
        with hold_directory(tmp_path, "Wait."), hold_directory(tmp_path, "Wait."):
            pass
