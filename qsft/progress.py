"""How far a piece of work is: a bar on a terminal, a plain line every ten seconds elsewhere, one line at its end."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_SECONDS = 10.0


class Progress:
    """`WHAT: 12/40 UNIT, TEXT, 0:31 left`; what was `done` before counts as done but not towards the rate."""

    def __init__(
        self, what: str, total: int, unit: str, *, done: int = 0, show: bool = True, console: Console | None = None
    ) -> None:
        self.what, self.total, self.unit, self.done, self.text = what, total, unit, done, ""
        self._resumed, self._show = done, show
        self._console = console or Console(stderr=True)
        self._start = self._last_line = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        # FORCE_COLOR, which a notebook's kernel sets, makes rich take any file for a terminal.
        terminal = self._console.is_terminal and ("FORCE_COLOR" not in os.environ or self._console.file.isatty())
        live = show and terminal
        self._bar = Bar(*columns, TimeRemainingColumn(), console=self._console, transient=True, disable=not live)
        self._task = self._bar.add_task(what, total=total, completed=done, text="")

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._show:
            print(f"{self.line()}, {clock(self.seconds)} in all", file=self._console.file, flush=True)

    def advance(self, amount: int = 1, text: str = "") -> None:
        """So much more is done; `text` is what else to say now (a rate, an accuracy)."""
        self.done += amount
        self.text = text
        self._bar.update(self._task, advance=amount, text=f"{self.done:,}/{self.total:,} {self.unit} {text}")
        now = time.monotonic()
        if self._show and self._bar.disable and now - self._last_line > LINE_SECONDS:
            self._last_line = now
            print(self.line(), file=self._console.file, flush=True)

    def per_second(self, count: float) -> float:
        return count / max(self.seconds, 1e-9)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def line(self) -> str:
        parts = [f"{self.what}: {self.done:,}/{self.total:,} {self.unit}", self.text]
        fresh = self.done - self._resumed
        if fresh and self.done < self.total:
            parts.append(f"{clock((self.total - self.done) * self.seconds / fresh)} left")
        return ", ".join(filter(None, parts))


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """No bars of `datasets` and `transformers` between our own."""
    import datasets
    from transformers.utils import logging

    shown = (datasets.is_progress_bar_enabled(), logging.is_progress_bar_enabled())
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown[0]:
            datasets.enable_progress_bars()
        if shown[1]:
            logging.enable_progress_bar()
