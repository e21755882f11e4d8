"""This process among those of a launch: which one it is, how it waits for the others, how it exits.

Ranks are read from the launcher's environment, here and nowhere else: asking accelerate for them would start its
process group, with a backend that the training configuration has not chosen yet.
"""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn


def rank() -> int:
    """This process's number among all of the launch."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes the launcher started, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """This process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this is the process that prints and writes what is written once."""
    return rank() == 0


def launched() -> bool:
    """Whether a launcher (accelerate, torchrun) started this process, alone or among others."""
    return "WORLD_SIZE" in os.environ


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment for a Python process that qsft starts.

    With PYTHONSAFEPATH, files in the current directory are not imported by it or by the processes that it starts.
    """
    return {**os.environ, "PYTHONSAFEPATH": "1", **more}


class Group:
    """The processes that share a piece of work: started by accelerate or torchrun, or this one alone."""

    def __init__(self) -> None:
        self._state: Any = None
        if world_size() > 1:
            import torch
            from accelerate import PartialState

            # One process may work for hours longer than another; the others wait for it.
            self._state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
        self.rank: int = self._state.process_index if self._state else 0
        self.count: int = self._state.num_processes if self._state else 1
        self.device: torch.device | None = self._state.device if self._state else None

    def wait(self) -> None:
        if self._state is not None:
            self._state.wait_for_everyone()

    def gather(self, items: list[Any]) -> list[Any]:
        """What every process brings, in the order of processes."""
        from accelerate.utils import gather_object

        return list(gather_object(items)) if self._state is not None else items

    def end(self) -> None:
        """Dissolve the group, without which gloo aborts at exit."""
        if self._state is not None:
            self.wait()
            self._state.destroy_process_group()


@contextmanager
def process_group() -> Iterator[None]:
    """Destroy the process group on the way out, whatever happened."""
    import torch

    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def exit_process(code: int) -> NoReturn:
    """Exit with `code`; among several processes without Python's finalisation, after everything registered for exit.

    Now and then a finished process was aborted there (most likely a thread of gloo that asked for the interpreter), and
    the launcher then calls a finished run failed.
    """
    if world_size() > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
