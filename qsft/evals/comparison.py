"""Runs side by side: paired differences by problem, with intervals; the first run is what the others differ from.

Pairing removes the problems' difficulty, which is most of the variance: two runs' own intervals may overlap while
their difference is certain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qsft import page
from qsft.evals import stats
from qsft.evals.eval_directory import EvalDirectory, graded_tasks, read_result
from qsft.evals.published import read_published
from qsft.evals.report_page import paragraphs, points_with_intervals
from qsft.evals.summary import Result, markdown_table, percent, with_interval
from qsft.files import write_json, write_text

PerProblem = dict[str, float]  # problem → share of right samples


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. `summary` is what comparison.json holds; str(comparison) is its table."""

    summary: dict[str, Any]

    def __str__(self) -> str:
        return to_markdown(self.summary)

    def write(self, directory: str | Path) -> Path:
        """Write comparison.json, comparison.md and comparison.html; the page's path."""
        directory = Path(directory)
        write_json(directory / "comparison.json", self.summary)
        write_text(directory / "comparison.md", str(self))
        return write_comparison_page(self.summary, directory / "comparison.html")


def compare(
    runs: Sequence[str | Path], paper: str | Path | None = None, *, names: Sequence[str] | None = None
) -> Comparison:
    """The comparison of runs' directories over the tasks and problems that all of them have.

    paper: published numbers to put beside, of a recipe of the paper or in a JSON file; the lenient score, by a grader
    like the paper's, then stands beside the strict one.
    """
    if len(runs) < 2 and paper is None:
        raise ValueError("a comparison needs two runs or more, or one run and --paper RECIPE or --paper FILE.json.")
    published = read_published(paper) if paper is not None else None
    names = list(names or run_names(runs))
    scores = {name: read_scores(Path(run)) for name, run in zip(names, runs, strict=True)}
    tasks = [task for task in scores[names[0]] if all(task in one for one in scores.values())]
    if not tasks:
        has = "; ".join(f"{name} has {', '.join(one) or 'none'}" for name, one in scores.items())
        raise ValueError(f"the runs have no task in common, so nothing can be compared: {has}.")
    shared = {task: shared_problems([scores[name][task] for name in names], task) for task in tasks}
    per_problem = {name: {task: _values(scores[name][task], shared[task]) for task in tasks} for name in names}
    summary = {
        "baseline": names[0],
        "problems": {task: len(shared[task]) for task in tasks},
        "accuracy": {name: _accuracies(per_problem[name]) for name in names},
        "difference": {name: _differences(per_problem[names[0]], per_problem[name]) for name in names[1:]},
        "left_out": {task: max(len(scores[name][task]) for name in names) - len(shared[task]) for task in tasks},
        "paper": published.shares(tasks) if published else {},
        "lenient": {name: lenient_scores(Path(run), shared) for name, run in zip(names, runs)} if published else {},
        "paper_notes": list(published.notes) if published else [],
        "notes": unlike_settings(dict(zip(names, map(read_settings, map(Path, runs)), strict=True)), tasks),
    }
    return Comparison(summary)


def run_names(runs: Sequence[str | Path]) -> list[str]:
    """Short names of runs: the parts of their paths that tell them apart."""
    parts = [Path(run).resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"the same run is given twice: {', '.join(map(str, runs))}.")


def read_scores(run: Path) -> dict[str, PerProblem]:
    """The share of right samples per problem, per task, from a run's grades."""
    return {task: problem_scores(read_result(run, task)) for task in graded_tasks(run)}


def problem_scores(result: Result, *, lenient: bool = False) -> PerProblem:
    samples: dict[str, list[bool]] = {}
    for generation, grade in zip(result.generations, result.grades, strict=True):
        samples.setdefault(generation.problem, []).append(grade.correct or (lenient and grade.lenient))
    return {problem: float(np.mean(correct)) for problem, correct in samples.items()}


def lenient_scores(run: Path, shared: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Accuracies by the lenient score, over the same problems as the strict ones."""
    found = {task: problem_scores(read_result(run, task), lenient=True) for task in shared}
    return _accuracies({task: _values(found[task], problems) for task, problems in shared.items()})


def read_settings(run: Path) -> dict[str, dict[str, Any]]:
    """How each task of a run was drawn, asked and read, as far as its settings.json says."""
    recorded = EvalDirectory(run).settings()
    return {
        task: {**one["protocol"], **{name: one["about"][name] for name in ("backend", "dtype")}}
        for task, one in recorded.items()
    }


def unlike_settings(runs: Mapping[str, Mapping[str, Mapping[str, Any]]], tasks: Sequence[str]) -> list[str]:
    """A line for every setting that is not the same in all runs, with the tasks it concerns."""
    concerned: dict[str, list[str]] = {}
    for task in tasks:
        found = {run: settings[task] for run, settings in runs.items() if task in settings}
        for key in dict.fromkeys(key for one in found.values() for key in one):
            values = {run: one.get(key) for run, one in found.items()}
            if any(value != next(iter(values.values())) for value in values.values()):
                text = ", ".join(f"{value} in {run}" for run, value in values.items())
                concerned.setdefault(f"{key} is {text}", []).append(task)
    return [f"{', '.join(names)}: {text}." for text, names in concerned.items()]


def shared_problems(runs: Sequence[PerProblem], task: str) -> list[str]:
    """The problems that every run has, in the first one's order."""
    shared = [problem for problem in runs[0] if all(problem in one for one in runs)]
    if not shared:
        raise ValueError(f"the runs answered different problems of {task!r}: none is in all of them.")
    return shared


def _values(scores: PerProblem, problems: Sequence[str]) -> stats.Scores:
    return np.array([scores[problem] for problem in problems])


def _accuracies(per_task: Mapping[str, stats.Scores]) -> dict[str, Any]:
    found = {task: asdict(stats.mean_over_problems(values)) for task, values in per_task.items()}
    return {**found, "macro": asdict(stats.macro_average(list(per_task.values())))}


def _differences(a: Mapping[str, stats.Scores], b: Mapping[str, stats.Scores]) -> dict[str, Any]:
    found = {task: asdict(stats.paired_difference(a[task], b[task])) for task in a}
    return {**found, "macro": asdict(stats.macro_average([b[task] - a[task] for task in a]))}


def to_markdown(summary: Mapping[str, Any]) -> str:
    """The comparison's tables and notes."""
    lines: list[str] = []
    for title, columns, rows in tables(summary):
        lines += [title, "", *markdown_table(columns, rows), ""]
    return "\n".join([*lines, *(f"- {note}" for note in notes_of(summary)), ""])


def tables(summary: Mapping[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows of each table, in per cent: accuracies, then paired differences from the first run."""
    tasks = [*summary["problems"], "macro"]
    rows = []
    for name, cells in summary["accuracy"].items():
        rows.append([name, *(with_interval(cells[task]) for task in tasks)])
        if lenient := summary["lenient"].get(name):
            rows.append([f"{name}, lenient", *(with_interval(lenient[task]) for task in tasks)])
    for name, cells in summary["paper"].items():
        rows.append([f"{name} (published)", *(percent(cells.get(task, float("nan")), 2) for task in tasks)])
    found = [("Accuracy, % [95 % interval]", ["", *tasks], rows)]
    if summary["difference"]:
        title = f"Difference from {summary['baseline']}, paired by problem, points [95 % interval]"
        rows = [[name, *(_signed(cells[task]) for task in tasks)] for name, cells in summary["difference"].items()]
        found.append((title, ["", *tasks], rows))
    return found


def notes_of(summary: Mapping[str, Any]) -> list[str]:
    return [
        "* marks an interval without 0. Differences are paired by problem.",
        *(f"Not measured alike: {note}" for note in summary["notes"]),
        *summary["paper_notes"],
        *(f"{task}: {n} problems that not every run has are left out." for task, n in summary["left_out"].items() if n),
    ]


def _signed(estimate: Mapping[str, float]) -> str:
    certain = estimate["low"] > 0 or estimate["high"] < 0
    mean, low, high = (f"{100 * estimate[key]:+.1f}" for key in ("mean", "low", "high"))
    return f"{mean}{'*' if certain else ''} [{low}, {high}]"


def write_comparison_page(summary: Mapping[str, Any], path: Path) -> Path:
    body = "".join(page.table(columns, rows, title) for title, columns, rows in tables(summary))
    body += paragraphs(notes_of(summary))
    body += page.figure(difference_figure(summary), "Difference in accuracy, percentage points, with 95 % intervals")
    return page.write_page(path, page.page("Comparison with " + summary["baseline"], body))


def difference_figure(summary: Mapping[str, Any]) -> Any:
    """Paired differences with intervals around the line of no difference."""
    import plotly.graph_objects as go

    tasks = [*summary["problems"], "macro"]
    shown = summary["difference"] or summary["accuracy"]
    traces = [
        go.Scatter(x=tasks, name=name, mode="markers", **points_with_intervals([cells[task] for task in tasks]))
        for name, cells in shown.items()
    ]
    return go.Figure(traces, go.Layout(yaxis={"title": "points"}, scattermode="group"))
