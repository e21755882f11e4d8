"""Stopping a training on Ctrl-C or SIGTERM: at once before the first step, after the current step later.

It imports no torch: the handlers are installed before that import, which takes seconds.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from qsft.processes import is_main

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


class StoppedEarlyError(BaseException):
    """A signal arrived while the run was prepared. A BaseException, so that no library handles it as an error."""


class StopRequest:
    """Whether a signal requested a stop: at once while the run is prepared, at the end of a step once it trains."""

    def __init__(self) -> None:
        self.requested = False  # this process received a signal
        self.preparing = True
        self.before_first_step = True

    def training_starts(self) -> None:
        """From now on a signal waits for the end of a step, where all processes stop together."""
        self.preparing = False

    def receive(self, number: int, _: FrameType | None) -> None:
        """Handle a signal; a second Ctrl-C raises KeyboardInterrupt."""
        # A launcher passes Ctrl-C on as SIGTERM too, so only a second SIGINT means "now".
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        is_first = not self.requested
        self.requested = True
        if is_first and self.preparing:
            raise StoppedEarlyError


def run_until_stopped(work: Callable[[StopRequest], T]) -> T | None:
    """Return what `work(stop)` returns, or None after a message when a signal stopped it before its first step."""
    stop = StopRequest()
    try:
        with signals_handled(stop.receive, *STOP_SIGNALS):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # a launcher may start with them blocked
            return work(stop)
    except (StoppedEarlyError, Exception):
        # Where the other processes were faster, this one fails in a collective without them.
        if not (stop.requested and stop.before_first_step):
            raise
    if is_main():
        print("\nStopped before the first step: nothing was trained. The same command starts again.", flush=True)
    return None


@contextmanager
def signals_handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Inside, the signals are handled by `handler`; afterwards by what handled them before."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)
