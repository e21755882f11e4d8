"""This process among those of a launch: its rank, waiting for the others, the environment of children, its exit.

Ranks are read from the launcher's environment, here and nowhere else: accelerate's own state would start the process
group, with a backend that the training configuration has not chosen yet.
"""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NoReturn


def rank() -> int:
    """Return this process's number among all processes of the launch."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Return the number of processes that the launcher started, on all machines."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """Return this process's number on its machine."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this is the process that prints, and writes files that are written once."""
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
    """The processes that share work: those that accelerate or torchrun started, or this one alone."""

    def __init__(self) -> None:
        self._state: Any = None
        if world_size() > 1:
            import torch
            from accelerate import PartialState

            # One process may work for hours longer than another; the others wait for it.
            self._state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=7))
        self.rank = 0
        self.count = 1
        self.device: torch.device | None = None
        if self._state is not None:
            self.rank = self._state.process_index
            self.count = self._state.num_processes
            self.device = self._state.device

    def wait(self) -> None:
        if self._state is not None:
            self._state.wait_for_everyone()

    def gather(self, items: list[Any]) -> list[Any]:
        """Return the items of all processes, in the order of processes."""
        from accelerate.utils import gather_object

        if self._state is None:
            return items
        return list(gather_object(items))

    def end(self) -> None:
        """Destroy the process group; without this gloo aborts at exit."""
        if self._state is not None:
            self.wait()
            self._state.destroy_process_group()


@contextmanager
def process_group() -> Iterator[None]:
    """Destroy the process group at the end, also after an error."""
    import torch

    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def exit_process(code: int) -> NoReturn:
    """Exit with a code; one of several processes skips Python's finalization, after the functions of atexit.

    A finished process was sometimes aborted during finalization (most likely by a thread of gloo that needed the
    interpreter), and the launcher then reports a finished run as failed.
    """
    if world_size() > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
