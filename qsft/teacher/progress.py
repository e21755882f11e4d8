"""How far a capture is: a bar on a terminal, a line every ten seconds elsewhere."""

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

LINE_SECONDS = 10.0


class CaptureProgress:
    """Documents, label tokens per second, bytes and the time that is left."""

    def __init__(self, total: int, *, show: bool, what: str) -> None:
        self._total, self._what, self._show = total, what, show
        self._documents = self._tokens = 0
        self._start = self._last_line = time.monotonic()
        self._bar: Progress | None = None
        if show and sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._task = self._bar.add_task(what, total=total, text="")

    def __enter__(self) -> "CaptureProgress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, documents: int, tokens: int, written: int) -> None:
        """Count a computed batch; `written` is all bytes so far."""
        self._documents += documents
        self._tokens += tokens
        if self._bar is not None:
            self._bar.update(self._task, advance=documents, text=self._text(written))
        elif self._show and self._line_is_due():
            print(f"{self._what}: {self._text(written)}, {self._left()} left", file=sys.stderr, flush=True)

    def _line_is_due(self) -> bool:
        now = time.monotonic()
        due = now - self._last_line > LINE_SECONDS or self._documents >= self._total
        self._last_line = now if due else self._last_line
        return due

    def _text(self, written: int) -> str:
        rate = self._tokens / max(time.monotonic() - self._start, 1e-9)
        return f"{self._documents}/{self._total} documents, {rate:,.0f} label tokens/s, {written / 1e6:,.1f} MB"

    def _left(self) -> str:
        elapsed = time.monotonic() - self._start
        seconds = int(elapsed * (self._total - self._documents) / max(self._documents, 1))
        return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
