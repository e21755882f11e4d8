"""A signal before the first step ends a run at once, with a message and without an error; one process, or a launch."""

import os
import signal
import sys
import threading
import time

import pytest

from qsft.cli import main
from qsft.recipe import stopping
from qsft.recipe.relaunch import run_child
from qsft.recipe.stopping import run_until_stopped

STOPPED = "Stopped before the first step"

DATA = """
import os, signal
from datasets import Dataset

def rows(seed):
    number = int(os.environ["SEND"])
    if number:
        os.kill(os.getpid(), number)
    return Dataset.from_dict({"input_ids": [[4, 5, 6, 7, 2]] * 16, "labels": [[-100, -100, 6, 7, 2]] * 16})
"""


def send(number):
    """Send this process a signal."""
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_data_are_loaded_ends_the_run_and_the_same_command_starts_again(
    number, tiny_files, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"rows_{number}.py").write_text(DATA)
    words = ["--model_name_or_path", str(tiny_files / "student"), "--dataset_name", f"rows_{number}:rows"]
    words += ["--target", "dft", "--output_dir", "run", "--use_cpu", "true", "--bf16", "false", "--dtype", "float32"]
    words += ["--max_steps", "1", "--global_batch_size", "16"]
    before = signal.getsignal(number)
    monkeypatch.setenv("SEND", str(int(number)))
    assert main(["train", *words]) == 0
    assert STOPPED in capsys.readouterr().out
    assert signal.getsignal(number) == before
    assert not (tmp_path / "run" / "model.safetensors").exists()
    monkeypatch.setenv("SEND", "0")
    assert main(["train", *words]) == 0
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_the_error_of_a_collective_without_the_other_processes_is_not_raised(capsys):
    """A process that waits for others in a collective gets its error first, and the signal second."""

    def work(stop):
        stop.training_starts()
        send(signal.SIGTERM)
        raise RuntimeError("connection closed by peer")

    assert run_until_stopped(work) is None
    assert STOPPED in capsys.readouterr().out


def test_other_errors_are_raised():
    def fails(stop):
        raise RuntimeError("out of memory")

    def fails_after_its_first_step(stop):
        stop.training_starts()
        send(signal.SIGTERM)
        stop.before_first_step = False
        raise RuntimeError("out of memory")

    for work in (fails, fails_after_its_first_step):
        with pytest.raises(RuntimeError, match="out of memory"):
            run_until_stopped(work)


def test_a_second_ctrl_c_ends_at_once_and_a_second_sigterm_does_not():
    def work(stop):
        stop.training_starts()
        send(signal.SIGINT)
        send(signal.SIGTERM)
        assert stop.requested
        send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_until_stopped(work)


def test_a_signal_that_was_blocked_by_the_launcher_arrives(capsys):
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping.STOP_SIGNALS)
    signal.raise_signal(signal.SIGTERM)  # of this thread: others, which tests have started, do not block it
    assert run_until_stopped(lambda stop: pytest.fail("it was not stopped")) is None
    assert STOPPED in capsys.readouterr().out
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


LAUNCHER = """
import pathlib, subprocess, sys, time

pathlib.Path("launcher").touch()
while not pathlib.Path("signaled").exists():
    time.sleep(0.01)
children = [subprocess.Popen([sys.executable, "worker.py", str(number)]) for number in range(2)]
sys.exit(max(child.wait() for child in children))
"""
WORKER = """
import sys, time
from qsft.recipe.stopping import run_until_stopped

run_until_stopped(lambda stop: time.sleep(60))
open("stopped" + sys.argv[1], "w").close()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_processes_that_a_launcher_starts_later(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    (tmp_path / "worker.py").write_text(WORKER)

    def signal_before_there_are_processes():
        while not (tmp_path / "launcher").exists():
            time.sleep(0.01)
        send(number)
        (tmp_path / "signaled").touch()

    threading.Thread(target=signal_before_there_are_processes, daemon=True).start()
    assert run_child([sys.executable, "launcher.py"], is_launcher=True) == (0, True)
    assert {file.name for file in tmp_path.glob("stopped*")} == {"stopped0", "stopped1"}
