"""Where the time of a capture goes, and what to change when it is slow."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

DATA = "data"
WRITES = "writes"
REMEDIES = {
    DATA: "Keep the prepared data set on a local disk, and leave this process a CPU core for reading it.",
    WRITES: "Put the cache (teacher_cache, --output_dir) on a faster disk, leave this process a CPU core for encoding, "
    "or store less (teacher_top_k, teacher_top_p).",
}
NOTABLE_SHARE = 1 / 3  # of the time: a longer wait is reported
FIRST_REPORT = 60.0  # seconds; a shorter capture is not worth a report


class WaitingTimes:
    """How long the teacher of a capture had to wait, and what for.

    Args:
        teacher_advice: what would make the teacher itself faster; called when it is not kept waiting.
        show: whether to print advice.
    """

    def __init__(self, teacher_advice: Callable[[], str | None], show: bool = True) -> None:
        self.seconds = dict.fromkeys(REMEDIES, 0.0)
        self._teacher_advice = teacher_advice
        self._show = show
        self._reported = False

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Count the time inside as waiting for `what`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[what] += time.monotonic() - start

    def summary(self, total: float) -> str:
        """The shares of `total` seconds that went to computing and to waiting."""
        shares = {what: seconds / max(total, 1e-9) for what, seconds in self.seconds.items()}
        computing = max(1 - sum(shares.values()), 0)
        parts = [f"{computing:.0%} of the time computing"]
        parts += [f"{share:.0%} waiting for {what}" for what, share in shares.items()]
        return ", ".join(parts)

    def report(self, total: float, *, finished: bool = False) -> None:
        """Print what to change, once after the first minute and once at the end."""
        if not self._show or total < FIRST_REPORT or (self._reported and not finished):
            return
        self._reported = True
        for line in self.advice(total):
            print(f"slow capture: {line}", file=sys.stderr)

    def advice(self, total: float) -> list[str]:
        """What to change after `total` seconds, largest gain first."""
        shares = {what: seconds / total for what, seconds in self.seconds.items()}
        notable = [what for what in shares if shares[what] > NOTABLE_SHARE]
        if notable:
            notable.sort(key=shares.__getitem__, reverse=True)
            return [f"{shares[what]:.0%} of the time is waiting for {what}. {REMEDIES[what]}" for what in notable]
        advice = self._teacher_advice()
        return [] if advice is None else [advice]
