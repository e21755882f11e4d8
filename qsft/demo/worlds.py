"""The same methods in four worlds side by side: where Target-SFT wins, and where something else does."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from qsft.demo.experiment import Memory, run
from qsft.demo.findings import LIMITS, QUICK, findings
from qsft.demo.methods import Method
from qsft.demo.present import show
from qsft.demo.results import Line, Results
from qsft.demo.scenario import Scenario
from qsft.demo.sheets import Chart, Sheet, sheets

WORLDS: dict[str, Scenario] = {
    "right": Scenario(),
    "wrong": Scenario(teacher="wrong"),
    "half-wrong": Scenario(teacher="half"),
    "clean": Scenario(noise=0.0),
}
NOTE = (
    "right: the demo's own world; wrong: a teacher that is sure that every product is one larger; half-wrong: the "
    "products of 0 to 4 only; clean: demonstrations without slips. ± is the standard error over seeds, or with a "
    "single seed over problems."
)


def run_worlds(seeds: int, methods: tuple[Method, ...], out: Path, console: Console, *, quick: bool = False) -> None:
    """Run every world, show them in one table and leave each with its own results below `out`."""
    memory: Memory = {}
    done = {}
    for name, scenario in WORLDS.items():
        console.print(f"\n[bold]the {name} world[/bold]", highlight=False)
        done[name] = run(scenario, seeds, methods, out / name, console, quick=quick, memory=memory)
    said = [QUICK] if quick else [*(f"{name}: {findings(results)[0]}" for name, results in done.items()), LIMITS]
    tables = [together(done), *sheets(done["right"])[1:]]
    commands = [("qsft demo --wrong-teacher half", "one of these worlds alone, with every table")]
    show(tables, said, commands, record(done, said), out, console)


def together(worlds: Mapping[str, Results]) -> Sheet:
    """Average@n of every model, a column for each world."""
    lines = {name: {line.label: line for line in results.lines} for name, results in worlds.items()}
    first = worlds["right"]
    n = first.scenario.samples
    return Sheet(
        "Four worlds",
        f"Average@{n} in %",
        ("model", *worlds),
        [(label, *(_cell(lines[name][label]) for name in worlds)) for label in lines["right"]],
        NOTE,
        first.hero.label if first.hero else None,
        Chart(
            {name: [line.average for line in by_label.values()] for name, by_label in lines.items()},
            f"Average@{n} in %",
            dots={name: [line.by_seed for line in by_label.values()] for name, by_label in lines.items()},
            stacked=False,
        ),
    )


def record(worlds: Mapping[str, Results], said: list[str]) -> dict[str, Any]:
    """The worlds as JSON-able data, under `worlds` what a run of each writes alone."""
    return {"findings": said, "worlds": {name: results.record(findings(results)) for name, results in worlds.items()}}


def _cell(line: Line) -> str:
    return f"{line.average:.1f} ± {line.standard_error:.1f}"
