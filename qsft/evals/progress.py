"""How far sampling is: a live line on a terminal, a plain line now and then elsewhere."""

import sys
import time
from concurrent.futures import Future
from typing import Any

from qsft.evals.grade import Grade

EVERY = 10.0  # seconds between plain lines


class Progress:
    """Counts samples, tokens and right answers, and says so: done/total, tokens per second, accuracy so far, ETA."""

    def __init__(self, task: str, total: int, done: int = 0, *, rate: str = "accuracy", silent: bool = False) -> None:
        self.rate = rate  # what the share of right answers is called
        self.task, self.total, self.done, self.resumed = task, total, done, done
        self.tokens = 0
        self.grades: list[bool] = []  # appended to by the grading threads
        self.start = self.last = time.monotonic()
        self._status = None if silent else _live_status()
        self._plain = not silent and self._status is None

    def add(self, tokens: int) -> None:
        """One more sample of so many tokens."""
        self.done += 1
        self.tokens += tokens
        now = time.monotonic()
        if self._status is not None and now - self.last > 0.1:
            self.last = now
            self._status.update(self.line())
        elif self._plain and now - self.last > EVERY:
            self.last = now
            print(self.line(), file=sys.stderr, flush=True)

    def count_grade(self, graded: "Future[Grade]") -> None:
        """One more sample was graded (called by a grading thread)."""
        if not graded.cancelled() and graded.exception() is None:
            self.grades.append(bool(graded.result()))

    def line(self) -> str:
        """The state in one line."""
        spent = max(time.monotonic() - self.start, 1e-9)
        fresh = self.done - self.resumed
        parts = [f"{self.task}: {self.done}/{self.total} samples", f"{self.tokens / spent:,.0f} tokens/s"]
        if self.grades:
            parts.append(f"{self.rate} so far {100 * sum(self.grades) / len(self.grades):.1f} %")
        if fresh and self.done < self.total:
            parts.append(f"ETA {_clock((self.total - self.done) * spent / fresh)}")
        return ", ".join(parts)

    def __enter__(self) -> "Progress":
        if self._status is not None:
            self._status.start()
            self._status.update(self.line())
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
        if self._status is not None or self._plain:
            print(self.line(), file=sys.stderr, flush=True)


def _live_status() -> Any:
    """rich's status line, or None where stderr is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.status("sampling") if console.is_terminal else None


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
