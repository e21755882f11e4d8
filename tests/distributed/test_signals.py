"""A signal before the first step: real launches, stopped while they import, prepare or wait for their processes."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from kills import rounds

pytestmark = pytest.mark.distributed

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
QSFT = [sys.executable, "-m", "qsft"]
RECIPE = Path(__file__).parents[2] / "recipes" / "numina_qwen_math_1p5b.yaml"
STOPPED = "Stopped before the first step"


@pytest.fixture
def words(tiny_run):
    """A training of some minutes, with a teacher whose cache is still to be built."""
    long = ("--num_train_epochs", "500", "--save_strategy", "no", "--disable_tqdm", "true")
    return ["numina_qwen_math_1p5b", *tiny_run("numina").words, *long]


@pytest.fixture
def start_command(tmp_path):
    """start_command(command): a process in a session of its own; its output is in two files. None outlives the test."""
    started = []

    def run(command):
        out, err = tmp_path / f"out{len(started)}", tmp_path / f"err{len(started)}"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                list(map(str, command)),
                cwd=tmp_path,
                env={**os.environ, **ENVIRONMENT},
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=default_sighup,
            )
        process.output, process.errors = out, err
        started.append(process)
        return process

    yield run
    for process in started:
        family = [process]
        if psutil.pid_exists(process.pid):
            family = [*psutil.Process(process.pid).children(recursive=True), process]
        for member in family:
            if psutil.pid_exists(member.pid):
                member.kill()
        process.wait()


def default_sighup():
    """Handle SIGHUP as in a terminal: under nohup it is ignored, and `qsft train` then leaves it ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def handles(pid, number):
    """Whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def workers(process):
    """The training processes: children of the launcher, which is the child of `qsft train`."""
    found = []
    for child in psutil.Process(process.pid).children():
        with suppress(psutil.NoSuchProcess):  # a short-lived child of a library that is imported
            found += child.children()
    return found


def wait_until(ready, process):
    while not ready():
        assert process.poll() is None, process.errors.read_text()[-3000:]
        time.sleep(0.002)


# When the signal is sent, from the start of the command to the moment before the first step.
MOMENTS = {
    "launcher_starts": lambda process, folder: handles(process.pid, signal.SIGHUP),
    "processes_start": lambda process, folder: len(workers(process)) == 2,
    "one_handles_signals": lambda process, folder: any(handles(w.pid, signal.SIGTERM) for w in workers(process)),
    "teacher_is_captured": lambda process, folder: list(folder.glob("cache/*")),
    "run_is_described": lambda process, folder: (folder / "run" / "recipe.json").exists(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number"),
    [*((moment, signal.SIGTERM) for moment in MOMENTS), ("one_handles_signals", signal.SIGINT)],
)
def test_two_processes_end_with_zero_and_without_a_traceback(start_command, words, tmp_path, moment, number):
    process = start_command([*QSFT, "train", *words, "--accelerate_config", "cpu"])
    wait_until(lambda: MOMENTS[moment](process, tmp_path), process)
    os.killpg(process.pid, number)
    assert ends_well(process, tmp_path)


def ends_well(process, folder):
    """Wait for the end of a command that was signaled: zero, no traceback, no model; whether a step was made."""
    process.wait(timeout=180)
    printed, errors = process.output.read_text(), process.errors.read_text()
    assert "Traceback" not in errors, errors[-3000:]
    assert process.returncode == 0, errors[-3000:]
    assert not (folder / "run" / "model.safetensors").exists()
    assert printed.count(STOPPED) + printed.count("Stopped after step") == 1
    return STOPPED in printed


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_signals_at_random_times(start_command, words, tmp_path, processes, tell):
    """From the moment when the command handles signals to the first steps."""
    launcher = ["--accelerate_config", "cpu"] if processes > 1 else []
    rng = random.Random(processes)
    counts = Counter()
    longest = 20.0
    for number in range(rounds(short=2, long=20)):
        process = start_command([*QSFT, "train", *words, *launcher, "--output_dir", tmp_path / str(number)])
        wait_until(lambda: handles(process.pid, signal.SIGTERM), process)
        began = time.monotonic()
        pause = rng.uniform(0, longest)
        while time.monotonic() - began < pause and "'loss'" not in process.output.read_text():
            time.sleep(0.01)
        os.killpg(process.pid, rng.choice([signal.SIGTERM, signal.SIGINT]))
        early = ends_well(process, tmp_path / str(number))
        counts["before the first step" if early else "after a step"] += 1
    tell(f"signals to a training of {processes} process(es): {dict(counts)}, all ended with 0 and no traceback")


@pytest.mark.slow
def test_processes_of_torchrun_end_well_though_the_launcher_does_not(start_command, words, tmp_path):
    """torch's launcher answers a signal with a traceback of its own and ends with 1."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    process = start_command([*torchrun, RECIPE, *words[1:]])
    children = lambda: psutil.Process(process.pid).children()  # noqa: E731
    wait_until(lambda: len(children()) == 2 and all(handles(c.pid, signal.SIGTERM) for c in children()), process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) != 0
    assert process.output.read_text().count(STOPPED) == 1
    errors = process.errors.read_text()
    assert "SignalException" in errors
    assert errors.count("Traceback") == 1, errors[-3000:]
