"""Print the results and write them: results.json, index.html, accuracy.png."""

import json
import os
from pathlib import Path

from rich.console import Console

from qsft.demo.findings import findings
from qsft.demo.next_steps import next_steps
from qsft.demo.picture import write_picture
from qsft.demo.results import Results
from qsft.demo.terminal import show
from qsft.demo.webpage import webpage
from qsft.page import write_page


def report(results: Results, out: Path, console: Console) -> None:
    """Show the results and leave them in `out`."""
    found, commands = findings(results), next_steps(results)
    show(results, found, console)
    written = [write_json(results.record(found), out / "results.json")]
    written.append(write_page(out / "index.html", webpage(results, found, commands)))
    if write_picture(results, out / "accuracy.png"):
        written.append(out / "accuracy.png")
    else:
        console.print("\naccuracy.png was left out: it needs matplotlib (pip install 'qsft[demo]').", markup=False)
    console.print("\n[bold]Written[/bold]")
    for path in written:
        console.print(f"  {path}", highlight=False, soft_wrap=True)
    console.print("\n[bold]What to run next[/bold]")
    for command, what in commands:
        console.print(f"  {command}\n      [dim]{what}[/dim]", highlight=False, soft_wrap=True)


def write_json(record: dict[str, object], path: Path) -> Path:
    """Write the record whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path
