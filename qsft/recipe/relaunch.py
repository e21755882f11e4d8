"""`qsft train … --accelerate_config NAME`: accelerate's launcher as a child that signals do not break.

torch's launcher answers a signal with a traceback and exit code 1, and kills its processes after 30 s, however cleanly
they end. So it runs in a process group of its own, out of reach of Ctrl-C, and signals go to the training processes
alone: they write a checkpoint and exit with 0, and so does the launcher.
"""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

from qsft.processes import launched
from qsft.recipe import packaged_directory

# The options of `accelerate launch` that differ from machine to machine while the configuration file stays.
LAUNCHER_OPTIONS = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids")


def relaunch(config: str, words: list[str]) -> int:
    """Run the words under `accelerate launch` with the given configuration; the launcher's exit code."""
    if launched():
        raise ValueError("--accelerate_config is for `qsft train` itself; accelerate launched this process already.")
    command = accelerate_command(config, words)
    print(shlex.join(command), flush=True)
    own, _ = split_words(words, LAUNCHER_OPTIONS)
    # A cluster may signal every process it finds: then the launcher's patience counts after all.
    env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600", **os.environ}
    env["QSFT_COMMAND"] = shlex.join(["qsft", "train", "--accelerate_config", config, *own])
    return run_child(command, env, launcher=True)[0]


def run_child(command: list[str], env: dict[str, str] | None = None, launcher: bool = False) -> tuple[int, bool]:
    """Run a command in a process group of its own to its end: its exit code, and whether a signal was passed on to it.

    Ctrl-C and SIGTERM go to the child, or to a launcher's children; a lost terminal ends the child. The exit code is
    128 + n where signal n killed it, in the shell's way.
    """
    child = subprocess.Popen(command, env=env, process_group=0)
    came: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        came.append(number)
        if number != signal.SIGHUP:
            print("\nqsft: stopping after this step; a second Ctrl-C stops at once.", file=sys.stderr, flush=True)
        with suppress(psutil.NoSuchProcess):  # it may be ending just now
            process = psutil.Process(child.pid)
            for receiver in process.children() if launcher and number != signal.SIGHUP else [process]:
                receiver.send_signal(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        numbers.append(signal.SIGHUP)
    with handled(pass_on, *numbers):
        code = child.wait()
    return code if code >= 0 else 128 - code, bool(came)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def accelerate_command(config: str, words: list[str]) -> list[str]:
    """The `accelerate launch` command; `config` is a file or the name of one of recipes/accelerate/."""
    named = {file.stem: file for file in sorted(packaged_directory().glob("accelerate/*.yaml"))}
    path = Path(config) if Path(config).is_file() else named.get(config)
    if path is None:
        raise ValueError(f"there is no accelerate configuration {config!r}. Give a file, or one of {', '.join(named)}.")
    own, rest = split_words(words, LAUNCHER_OPTIONS)
    launcher = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", str(path)]
    return [*launcher, *own, "-m", "qsft", "train", *rest]


def split_words(words: Sequence[str], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(the `--name value` and `--name=value` words among `names`, all other words), each in order."""
    own: list[str] = []
    rest: list[str] = []
    value_follows = False
    for word in words:
        name, equals, _ = word[2:].partition("=")
        named = word.startswith("--") and name.replace("-", "_") in names
        (own if named or value_follows else rest).append(word)
        value_follows = named and not equals
    return own, rest
