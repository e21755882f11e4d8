"""Progress of long work: a bar on a terminal, a plain line every ten seconds elsewhere, and one line at the end."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

LINE_SECONDS = 10.0


class Progress:
    """Prints `WHAT: 12/40 UNIT, TEXT, 0:31 left`.

    Args:
        what: the work.
        total: units of work.
        unit: name of the unit.
        done: units that were complete before; they do not count for the rate.
        show: whether to print at all.
        console: where to print; standard error by default.
    """

    def __init__(
        self, what: str, total: int, unit: str, *, done: int = 0, show: bool = True, console: Console | None = None
    ) -> None:
        self.what = what
        self.total = total
        self.unit = unit
        self.done = done
        self.text = ""
        self._resumed = done
        self._show = show
        self._console = console or Console(stderr=True)
        self._start = time.monotonic()
        self._last_line = self._start
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[text]}"))
        # With FORCE_COLOR, which a notebook's kernel sets, rich treats any file as a terminal.
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
        """Add completed units; `text` is shown beside them (a rate, an accuracy)."""
        self.done += amount
        self.text = text
        self._bar.update(self._task, advance=amount, text=f"{self.done:,}/{self.total:,} {self.unit} {text}")
        now = time.monotonic()
        if self._show and self._bar.disable and now - self._last_line > LINE_SECONDS:
            self._last_line = now
            print(self.line(), file=self._console.file, flush=True)

    def per_second(self, count: float) -> float:
        """Return a count divided by the seconds since the start."""
        return count / max(self.seconds, 1e-9)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def line(self) -> str:
        """Return the work, how much of it is done, the text of the last `advance`, and the time left if it is known."""
        parts = [f"{self.what}: {self.done:,}/{self.total:,} {self.unit}", self.text]
        completed_now = self.done - self._resumed
        if completed_now and self.done < self.total:
            seconds_left = (self.total - self.done) * self.seconds / completed_now
            parts.append(f"{clock(seconds_left)} left")
        return ", ".join(filter(None, parts))


def clock(seconds: float) -> str:
    """Return seconds as 1:02:03 or 2:03.

    >>> clock(3723), clock(123)
    ('1:02:03', '2:03')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Inside, `datasets` and `transformers` show no progress bars."""
    import datasets
    from transformers.utils import logging

    datasets_bars = datasets.is_progress_bar_enabled()
    transformers_bars = logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if datasets_bars:
            datasets.enable_progress_bars()
        if transformers_bars:
            logging.enable_progress_bar()
