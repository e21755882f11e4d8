"""What the demo says while it works: a bar per phase in a terminal, and one line with its time when it is done."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[int], object]


class Phases:
    """Phases of work on a console, with the seconds each one took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str, total: int, unit: str) -> Iterator[Advance]:
        """Run a phase of `total` units; call what is yielded with the number of units just done."""
        start = time.perf_counter()
        columns = (TextColumn("  {task.description:<28}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit))
        hidden = not self.console.is_terminal
        with Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True, disable=hidden) as bar:
            task = bar.add_task(name, total=total)
            yield lambda done: bar.advance(task, done)
        self.seconds[name] = time.perf_counter() - start
        self.console.print(f"  {name:<28} {total:>6,} {unit:<10} {self.seconds[name]:6.1f} s", highlight=False)

    def skip(self, name: str, why: str) -> None:
        """Say that a phase has nothing to do."""
        self.console.print(f"  {name:<28} {why}", highlight=False)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """No bars of `datasets` and `transformers` between the demo's own."""
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
