"""How a process that works among several ends: the group destroyed, the exit code its own."""

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def process_group() -> Iterator[None]:
    """Destroy the process group on the way out, whatever happened."""
    import torch

    try:
        yield
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def leave(code: int) -> NoReturn:
    """Exit with `code`; among several processes without Python's finalisation, after everything registered for exit.

    Now and then a finished process was aborted there (most likely a thread of gloo that asked for the interpreter), and
    the launcher then calls a finished run failed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
