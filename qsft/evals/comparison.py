"""Runs side by side: paired differences by problem, with intervals; the first run is what the others differ from.

Pairing removes the problems' difficulty, which is most of the variance: two runs' own intervals may overlap while
their difference is certain.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qsft import page
from qsft.evals import stats
from qsft.evals.eval_directory import EvalDirectory, graded_tasks, read_result
from qsft.evals.published import read_published
from qsft.evals.reader import page_with_reader
from qsft.evals.report_page import paragraphs, points_with_intervals
from qsft.evals.summary import Result, markdown_table, percent, with_interval
from qsft.files import write_json, write_text

PerProblem = dict[str, float]  # problem → share of right samples


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. `summary` is what comparison.json holds; str(comparison) is its table."""

    summary: dict[str, Any]
    results: Mapping[str, Mapping[str, Result]] = field(default_factory=dict, repr=False)  # run → task → responses

    def __str__(self) -> str:
        return to_markdown(self.summary)

    def write(self, directory: str | Path) -> Path:
        """Write comparison.json, comparison.md and comparison.html; the page's path."""
        directory = Path(directory)
        write_json(directory / "comparison.json", self.summary)
        write_text(directory / "comparison.md", str(self))
        return write_comparison_page(self, directory / "comparison.html")


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
    found = {name: read_results(Path(run)) for name, run in zip(names, runs, strict=True)}
    scores = {name: {task: problem_scores(one) for task, one in tasks.items()} for name, tasks in found.items()}
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
        "lenient": {name: lenient_scores(found[name], shared) for name in names} if published else {},
        "lengths": {name: response_lengths([found[name][task] for task in tasks]) for name in names},
        "paper_notes": list(published.notes) if published else [],
        "notes": unlike_settings(dict(zip(names, map(read_settings, map(Path, runs)), strict=True)), tasks),
    }
    return Comparison(summary, {name: {task: one[task] for task in tasks} for name, one in found.items()})


def run_names(runs: Sequence[str | Path]) -> list[str]:
    """Short names of runs: the parts of their paths that tell them apart."""
    parts = [Path(run).resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"the same run is given twice: {', '.join(map(str, runs))}.")


def read_results(run: Path) -> dict[str, Result]:
    """The graded responses of a run, per task."""
    return {task: read_result(run, task) for task in graded_tasks(run)}


def problem_scores(result: Result, *, lenient: bool = False) -> PerProblem:
    samples: dict[str, list[bool]] = {}
    for generation, grade in zip(result.generations, result.grades, strict=True):
        samples.setdefault(generation.problem, []).append(grade.correct or (lenient and grade.lenient))
    return {problem: float(np.mean(correct)) for problem, correct in samples.items()}


def lenient_scores(results: Mapping[str, Result], shared: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Accuracies by the lenient score, over the same problems as the strict ones."""
    found = {task: problem_scores(results[task], lenient=True) for task in shared}
    return _accuracies({task: _values(found[task], problems) for task, problems in shared.items()})


def response_lengths(results: Sequence[Result]) -> dict[str, float]:
    """The lengths of responses pooled over tasks, in tokens, and the share cut off; empty where none was recorded."""
    drawn = [generation for result in results for generation in result.generations]
    tokens = np.array([one.tokens for one in drawn])
    if not tokens.any():
        return {}
    p25, p75 = np.quantile(tokens, [0.25, 0.75])
    cut = float(np.mean([one.finish == "length" for one in drawn]))
    return {"mean": float(tokens.mean()), "p25": float(p25), "p75": float(p75), "truncated": cut}


def read_settings(run: Path) -> dict[str, dict[str, Any]]:
    """How each task of a run was drawn, asked and read, as far as its settings.json says."""
    recorded = EvalDirectory(run).settings()
    return {
        task: {
            **one["protocol"],
            **{name: one["about"][name] for name in ("backend", "dtype")},
            **({"reading": one["reading"]} if one.get("reading") else {}),
        }
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
    lengths = {name: one for name, one in summary["lengths"].items() if one}
    if lengths:
        rows = [
            [name, percent(summary["accuracy"][name]["macro"]["mean"]), f"{one['mean']:.0f}",
             f"{one['p25']:.0f}–{one['p75']:.0f}", percent(one["truncated"])]
            for name, one in lengths.items()
        ]  # fmt: skip
        columns = ["", "accuracy, %", "mean tokens", "25–75 % of responses", "cut off, %"]
        found.append(("Response lengths over all tasks", columns, rows))
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


def write_comparison_page(comparison: Comparison, path: Path) -> Path:
    """Tables and plots, then every problem with the responses of all runs side by side, those that changed first."""
    summary, results = comparison.summary, comparison.results
    body = "".join(page.table(columns, rows, title) for title, columns, rows in tables(summary))
    body += paragraphs(notes_of(summary))
    body += page.figure(difference_figure(summary), "Difference in accuracy, percentage points, with 95 % intervals")
    if any(summary["lengths"].values()):
        body += page.figure(lengths_figure(summary), "Response length and accuracy: mean tokens, 25–75 % of responses")
    if len(results) > 1:
        caption = (
            f"Each problem's share of right samples beside that of {summary['baseline']}; on the line nothing changed"
        )
        body += page.figure(problems_figure(results), caption, height=420)
    return page.write_page(path, page_with_reader("Comparison with " + summary["baseline"], body, results))


def lengths_figure(summary: Mapping[str, Any]) -> Any:
    """Macro accuracy over the length of responses, one point per run, with the band of the middle half."""
    import plotly.graph_objects as go

    traces = []
    for name, one in summary["lengths"].items():
        if one:
            band = {"type": "data", "array": [one["p75"] - one["mean"]], "arrayminus": [one["mean"] - one["p25"]]}
            point = points_with_intervals([summary["accuracy"][name]["macro"]])
            traces.append(go.Scatter(x=[one["mean"]], name=name, mode="markers", **point, error_x=band))
    return go.Figure(traces, go.Layout(xaxis={"title": "tokens"}, yaxis={"title": "accuracy, %"}))


def problems_figure(results: Mapping[str, Mapping[str, Result]]) -> Any:
    """Every problem as a point: its share of right samples in the first run and in another."""
    import plotly.graph_objects as go

    (_, first), *others = results.items()
    traces = [go.Scatter(x=[0, 100], y=[0, 100], mode="lines", showlegend=False, hoverinfo="skip",
                         line={"dash": "dot", "color": page.GREY})]  # fmt: skip
    for name, run in others:
        pairs = Counter(
            (round(100 * before[problem], 2), round(100 * after[problem], 2))
            for task in first
            for before, after in [(problem_scores(first[task]), problem_scores(run[task]))]
            for problem in before
            if problem in after
        )
        size = [4 + 3 * float(np.sqrt(count)) for count in pairs.values()]
        text = [f"{count} problems" for count in pairs.values()]
        x, y = zip(*pairs, strict=True)
        traces.append(go.Scatter(x=x, y=y, text=text, name=name, mode="markers", marker={"size": size, "opacity": 0.6}))
    axes = {"xaxis": {"title": f"{next(iter(results))}, %"}, "yaxis": {"title": "the other, %"}}
    return go.Figure(traces, go.Layout(**axes))


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
