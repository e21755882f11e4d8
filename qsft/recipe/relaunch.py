"""`qsft train … --accelerate_config NAME`: run accelerate's launcher as a child that signals do not break.

torch's launcher answers a signal with a traceback and exit code 1, and kills its processes after 30 s, however cleanly
they end. So it runs in a process group of its own, which Ctrl-C does not reach, and signals go to the training
processes alone: they write a checkpoint and exit with 0, and so does the launcher.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import yaml

from qsft.processes import child_environment, launched
from qsft.recipe import packaged_directory
from qsft.recipe.stopping import STOP_SIGNALS, signals_handled
from qsft.redaction import redact_words
from qsft.validation import did_you_mean

# The options of `accelerate launch` that differ from machine to machine while the configuration file stays.
LAUNCHER_OPTIONS = ("num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "gpu_ids")
# The command that the user gave, for a process that a launcher started: the message after a stop prints it.
COMMAND_VARIABLE = "QSFT_COMMAND"
POLL_SECONDS = 0.1
SHUTDOWN_SECONDS = "600"  # a cluster may signal every process it finds, the launcher too


def relaunch(config: str, words: Sequence[str]) -> int:
    """Run `qsft train WORDS` under `accelerate launch` and return the launcher's exit code.

    Args:
        config: A file of `accelerate config`, or the name of one in recipes/accelerate/.
        words: recipe, keys and the launcher's options.

    Raises:
        ValueError: there is no such configuration, it needs a library that is not installed, or accelerate already
            launched this process.
    """
    if launched():
        raise ValueError(
            "--accelerate_config is for `qsft train` itself; accelerate launched this process already. Leave it out."
        )
    file = find_accelerate_config(config)
    check_libraries(file)
    launcher_words, training_words = split_words(words, LAUNCHER_OPTIONS)
    command = accelerate_command(file, launcher_words, training_words)
    print(shlex.join(redact_words(command)), flush=True)
    environment = child_environment()
    environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SHUTDOWN_SECONDS)
    environment[COMMAND_VARIABLE] = shlex.join(["qsft", "train", "--accelerate_config", config, *launcher_words])
    code, _ = run_child(command, environment, is_launcher=True)
    return code


def find_accelerate_config(config: str) -> Path:
    """Return the file of an accelerate configuration, given by path or by the name of a packaged one."""
    packaged = {file.stem: file for file in sorted(packaged_directory().glob("accelerate/*.yaml"))}
    if config in packaged:
        return packaged[config]
    if Path(config).is_file():
        return Path(config)
    raise ValueError(
        f"there is no accelerate configuration {config!r}.{did_you_mean(config, packaged)} Give a file, or one of "
        f"{', '.join(packaged)}."
    )


def check_libraries(config: Path) -> None:
    """Raise ValueError for a DeepSpeed configuration where DeepSpeed is not installed."""
    try:
        content: Any = yaml.safe_load(config.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{config} is not a YAML file: {error}") from error
    kind = content.get("distributed_type") if isinstance(content, dict) else None
    if kind == "DEEPSPEED" and find_spec("deepspeed") is None:
        raise ValueError(
            f"{config.stem} needs DeepSpeed, which is not installed. Run pip install 'qsft[deepspeed]', or use "
            "--accelerate_config fsdp2, which needs PyTorch only."
        )


def accelerate_command(config: Path, launcher_words: Sequence[str], training_words: Sequence[str]) -> list[str]:
    launcher = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", str(config)]
    return [*launcher, *launcher_words, "-m", "qsft", "train", *training_words]


def run_child(
    command: list[str], environment: dict[str, str] | None = None, *, is_launcher: bool = False
) -> tuple[int, bool]:
    """Run a command in a process group of its own and return its exit code and whether a signal was passed on to it.

    Ctrl-C and SIGTERM go to the child, or to the children of a launcher; a lost terminal ends the child. The exit code
    is 128 + n where signal n killed it, as in a shell.
    """
    numbers = [*STOP_SIGNALS]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    # A launcher and its children begin with the signals blocked, so that one that comes before `run_until_stopped`
    # has installed its handlers waits for them.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS if is_launcher else ())
    child = subprocess.Popen(command, env=environment or child_environment(), process_group=0)
    signals = ForwardedSignals(child.pid, is_launcher)
    with signals_handled(signals.receive, *numbers):
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        while child.poll() is None:
            time.sleep(POLL_SECONDS)
            signals.forward()  # also to processes that the launcher has started since
    code = child.returncode
    return (code if code >= 0 else 128 - code), bool(signals.received)


class ForwardedSignals:
    """The signals that this process received, each sent once to a child or to every child of a launcher."""

    def __init__(self, child: int, is_launcher: bool) -> None:
        self.received: list[int] = []
        self._child = child
        self._is_launcher = is_launcher
        self._sent: dict[int, int] = {}  # by process id

    def receive(self, number: int, _: FrameType | None) -> None:
        """Handle a signal: a lost terminal is passed on at once, the others by `forward`."""
        if number == signal.SIGHUP:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)
        else:
            print("\nqsft: stopping; a second Ctrl-C stops at once.", file=sys.stderr, flush=True)
        self.received.append(number)

    def forward(self) -> None:
        """Send the child, or the children of a launcher, the signals that each has not been sent yet."""
        numbers = [number for number in self.received if number != signal.SIGHUP]
        if not numbers:
            return
        with suppress(psutil.NoSuchProcess):  # it may be ending just now
            process = psutil.Process(self._child)
            for receiver in process.children() if self._is_launcher else [process]:
                for number in numbers[self._sent.get(receiver.pid, 0) :]:
                    receiver.send_signal(number)
                self._sent[receiver.pid] = len(numbers)


def split_words(words: Sequence[str], names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Return the `--name value` and `--name=value` words of some options, and all other words, each in order.

    >>> split_words(["--seed", "1", "--num_processes=2"], ("num_processes",))
    (['--num_processes=2'], ['--seed', '1'])
    """
    selected: list[str] = []
    others: list[str] = []
    value_follows = False
    for word in words:
        name, equals, _ = word[2:].partition("=")
        is_selected = word.startswith("--") and name.replace("-", "_") in names
        if is_selected or value_follows:
            selected.append(word)
        else:
            others.append(word)
        value_follows = is_selected and not equals
    return selected, others
