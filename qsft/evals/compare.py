"""Compare evaluations: differences from the first run, paired by problem, with intervals.

Pairing removes the problems' difficulty, which is most of the variance: the intervals of two runs may overlap while the
interval of their difference excludes 0.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qsft.evals.figures import difference_figure, lengths_and_accuracy_figure, problems_figure
from qsft.evals.findings import (
    CaptionedFigure,
    Table,
    percent,
    signed_with_interval,
    to_markdown,
    with_interval,
    write_findings,
)
from qsft.evals.published import Method, Published, read_published
from qsft.evals.report import Report, summarize
from qsft.evals.responses_page import responses_part
from qsft.evals.results import Result, pooled_lengths
from qsft.evals.stats import Scores, macro_average, mean_over_problems

MACRO = "macro"


@dataclass(frozen=True)
class Comparison:
    """What a comparison found: the content of comparison.json, and the graded responses by run and task."""

    summary: dict[str, Any]
    results: Mapping[str, Mapping[str, Result]] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return to_markdown(self.tables(), self.notes())

    def tables(self) -> list[Table]:
        tables = [self._accuracy_table()]
        if self.summary["difference"]:
            tables.append(self._difference_table())
        tables.append(self._lengths_table())
        return tables

    def _columns(self) -> list[str]:
        return [*self.summary["problems"], MACRO]

    def _accuracy_table(self) -> Table:
        columns = self._columns()
        published = self.summary["paper"]
        row_of_run = self.summary["paper_rows"]
        rows = []
        for name, cells in self.summary["accuracy"].items():
            rows.append([name, *(with_interval(cells[column]) for column in columns)])
            lenient = self.summary["lenient"].get(name)
            if lenient:
                rows.append([f"{name}, lenient", *(with_interval(lenient[column]) for column in columns)])
            if name in row_of_run:
                row = row_of_run[name]
                rows.append(_published_cells(f"{name}, published as {row}", published[row], columns))
        for row, cells in published.items():
            if row not in row_of_run.values():
                rows.append(_published_cells(f"{row} (published)", cells, columns))
        return Table("Accuracy, % [95 % interval]", ["", *columns], rows)

    def _difference_table(self) -> Table:
        columns = self._columns()
        title = f"Difference from {self.summary['baseline']}, paired by problem, points [95 % interval]"
        rows = [
            [name, *(signed_with_interval(cells[column]) for column in columns)]
            for name, cells in self.summary["difference"].items()
        ]
        return Table(title, ["", *columns], rows)

    def _lengths_table(self) -> Table:
        columns = ["", "accuracy, %", "mean tokens", "25–75 % of responses", "cut off, %"]
        rows = []
        for name, lengths in self.summary["lengths"].items():
            accuracy = percent(self.summary["accuracy"][name][MACRO]["mean"])
            quartiles = f"{lengths['p25']:.0f}–{lengths['p75']:.0f}"
            rows.append([name, accuracy, f"{lengths['mean']:.0f}", quartiles, percent(lengths["truncated"])])
        return Table("Response lengths over all tasks", columns, rows)

    def notes(self) -> list[str]:
        notes = ["* marks an interval without 0. Differences are paired by problem."]
        notes += [f"Settings differ: {note}" for note in self.summary["notes"]]
        notes += self.summary["paper_notes"]
        for task, count in self.summary["left_out"].items():
            if count:
                notes.append(f"{task}: {count} problems are left out, because some run lacks them.")
        return notes

    def figures(self) -> list[CaptionedFigure]:
        summary = self.summary
        macro = {name: cells[MACRO] for name, cells in summary["accuracy"].items()}
        figures = [
            CaptionedFigure(
                difference_figure(self._columns(), summary["difference"] or summary["accuracy"]),
                "Difference in accuracy, percentage points, with 95 % intervals",
            ),
            CaptionedFigure(
                lengths_and_accuracy_figure(summary["lengths"], macro),
                "Response lengths over all tasks: bars are the mean, error bars 25–75 % of responses, the line is the "
                "average accuracy",
            ),
        ]
        if len(self.results) > 1:
            caption = f"Each problem's share of correct samples, in {summary['baseline']} and in the other run"
            figures.append(CaptionedFigure(problems_figure(self.results), caption))
        return figures

    def write(self, directory: str | Path) -> Path:
        """Write comparison.json, comparison.md and comparison.html; return the page's path."""
        return write_findings(
            Path(directory) / "comparison.json",
            Path(directory) / "comparison.html",
            title=f"Comparison with {self.summary['baseline']}",
            summary=self.summary,
            tables=self.tables(),
            notes=self.notes(),
            figures=self.figures(),
            responses=responses_part(self.results),
        )


def _published_cells(label: str, cells: Mapping[str, float], columns: Sequence[str]) -> list[str]:
    return [label, *(percent(cells.get(column), 2) for column in columns)]


def compare(
    runs: Sequence[str | Path],
    paper: str | Path | None = None,
    *,
    names: Sequence[str] | None = None,
    trained_with: Mapping[str, Method] | None = None,
) -> Comparison:
    """Compare the evaluations in several directories over the tasks and problems that all of them have.

    Args:
        runs: directories of evaluations; the others are compared with the first.
        paper: published numbers to show, of a recipe of the paper or in a JSON file. The lenient score, by a grader
            like the paper's, is then shown too.
        names: how the runs are called; by default the shortest distinct ends of their paths.
        trained_with: the method of a run, where it is known, by the run's name. The published row of the same method
            and hyper-parameters stands below the run.

    Raises:
        ValueError: if there is nothing to compare: one run only, no common task, no common problem.
    """
    if len(runs) < 2 and paper is None:
        raise ValueError("a comparison needs two runs or more, or one run and --paper RECIPE or --paper FILE.json.")
    published = read_published(paper) if paper is not None else None
    reports = {name: summarize(run) for name, run in zip(names or run_names(runs), runs, strict=True)}
    tasks = _common_tasks(reports)
    shared = {task: _common_problems(reports, task) for task in tasks}
    strict = {name: _scores(report, shared, lenient=False) for name, report in reports.items()}
    lenient = {name: _scores(report, shared, lenient=True) for name, report in reports.items()}
    baseline, *others = reports
    difference = {name: {task: strict[name][task] - strict[baseline][task] for task in tasks} for name in others}
    most_problems = {task: max(len(one.results[task].per_problem()) for one in reports.values()) for task in tasks}
    paper_cells: dict[str, dict[str, float]] = {}
    paper_rows: dict[str, str] = {}
    if published is not None:
        paper_cells = published.shares(tasks)
        paper_rows = _rows_of_runs(published, trained_with or {}, paper_cells)
    summary = {
        "baseline": baseline,
        "problems": {task: len(problems) for task, problems in shared.items()},
        "accuracy": {name: estimate_tasks(scores) for name, scores in strict.items()},
        "difference": {name: estimate_tasks(scores) for name, scores in difference.items()},
        "left_out": {task: most_problems[task] - len(shared[task]) for task in tasks},
        "paper": paper_cells,
        "paper_rows": paper_rows,
        "lenient": {name: estimate_tasks(scores) for name, scores in lenient.items()} if published else {},
        "lengths": {name: pooled_lengths([one.results[task] for task in tasks]) for name, one in reports.items()},
        "paper_notes": list(published.notes) if published else [],
        "notes": differing_settings(reports, tasks),
    }
    results = {name: {task: report.results[task] for task in tasks} for name, report in reports.items()}
    return Comparison(summary, results)


def _rows_of_runs(published: Published, trained_with: Mapping[str, Method], shown: Iterable[str]) -> dict[str, str]:
    """The published row of each run whose method has one among the rows that are shown."""
    rows = {name: published.row_of(method.target, method.hparams) for name, method in trained_with.items()}
    return {name: row for name, row in rows.items() if row is not None and row in shown}


def run_names(runs: Sequence[str | Path]) -> list[str]:
    """Names for runs: the shortest ends of their paths that are all different."""
    parts = [Path(run).resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"the same run is given twice: {', '.join(map(str, runs))}.")


def _common_tasks(reports: Mapping[str, Report]) -> list[str]:
    first = next(iter(reports.values()))
    tasks = [task for task in first.results if all(task in report.results for report in reports.values())]
    if not tasks:
        found = "; ".join(f"{name} has {', '.join(report.results)}" for name, report in reports.items())
        raise ValueError(f"the runs have no task in common, so nothing can be compared: {found}.")
    return tasks


def _common_problems(reports: Mapping[str, Report], task: str) -> list[str]:
    by_run = [report.results[task].per_problem() for report in reports.values()]
    shared = [problem for problem in by_run[0] if all(problem in problems for problems in by_run)]
    if not shared:
        raise ValueError(f"the runs answered different problems of {task!r}: none is in all of them.")
    return shared


def _scores(report: Report, shared: Mapping[str, Sequence[str]], *, lenient: bool) -> dict[str, Scores]:
    """The share of correct samples of each shared problem, by task."""
    scores = {}
    for task, problems in shared.items():
        per_problem = report.results[task].per_problem(lenient=lenient)
        scores[task] = np.array([per_problem[problem] for problem in problems])
    return scores


def estimate_tasks(per_task: Mapping[str, Scores]) -> dict[str, Any]:
    """The mean with its interval for each task, and the macro average."""
    estimates = {task: asdict(mean_over_problems(values)) for task, values in per_task.items()}
    return {**estimates, MACRO: asdict(macro_average(list(per_task.values())))}


def differing_settings(reports: Mapping[str, Report], tasks: Sequence[str]) -> list[str]:
    """A line for every setting that is not the same in all runs, with the tasks that it concerns."""
    concerned: dict[str, list[str]] = {}
    for task in tasks:
        settings = {name: _settings_of(report, task) for name, report in reports.items()}
        for key in dict.fromkeys(key for one in settings.values() for key in one):
            values = {name: one.get(key) for name, one in settings.items()}
            if any(value != next(iter(values.values())) for value in values.values()):
                text = ", ".join(f"{value} in {name}" for name, value in values.items())
                concerned.setdefault(f"{key} is {text}", []).append(task)
    return [f"{', '.join(names)}: {text}." for text, names in concerned.items()]


def _settings_of(report: Report, task: str) -> dict[str, Any]:
    """How a task was measured: the protocol, backend and precision, and the reading of multiple choice."""
    settings = report.summary["settings"]["tasks"][task]
    return {**settings, "reading": report.results[task].reading}
