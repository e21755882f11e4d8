"""Runs side by side: paired differences by problem, with intervals; the first run is what the others differ from.

Pairing removes the problems' difficulty, which is most of the variance: two runs' own intervals may overlap while
their difference is certain. Published numbers to put beside: the paper's tables, which ship with the package, or a
file; averages are recomputed from the cells, since the printed ones are not always their mean (the notes say where).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from qsft import page
from qsft.evals.eval_directory import EvalDirectory, graded_tasks, read_result
from qsft.evals.report import Findings, Table, percent, plot, points_with_intervals, with_interval
from qsft.evals.stats import Result, Scores, lengths, macro_average, mean_over_problems
from qsft.files import read_json
from qsft.validation import did_you_mean

SHAPE = '{"rows": {"SFT": {"math500": 61.2, …}, …}}, accuracies in per cent under the names of tasks'


@dataclass(frozen=True)
class Comparison(Findings):
    """What a comparison found; results by run and task."""

    def tables(self) -> list[Table]:
        summary = self.summary
        tasks = [*summary["problems"], "macro"]
        rows = []
        for name, cells in summary["accuracy"].items():
            rows.append([name, *(with_interval(cells[task]) for task in tasks)])
            if lenient := summary["lenient"].get(name):
                rows.append([f"{name}, lenient", *(with_interval(lenient[task]) for task in tasks)])
        for name, cells in summary["paper"].items():
            rows.append([f"{name} (published)", *(percent(cells.get(task), 2) for task in tasks)])
        found: list[Table] = [("Accuracy, % [95 % interval]", ["", *tasks], rows)]
        if summary["difference"]:
            title = f"Difference from {summary['baseline']}, paired by problem, points [95 % interval]"
            rows = [[name, *(_signed(cells[task]) for task in tasks)] for name, cells in summary["difference"].items()]
            found.append((title, ["", *tasks], rows))
        rows = [
            [name, percent(summary["accuracy"][name]["macro"]["mean"]), f"{one['mean']:.0f}",
             f"{one['p25']:.0f}–{one['p75']:.0f}", percent(one["truncated"])]
            for name, one in summary["lengths"].items() if one
        ]  # fmt: skip
        if rows:
            columns = ["", "accuracy, %", "mean tokens", "25–75 % of responses", "cut off, %"]
            found.append(("Response lengths over all tasks", columns, rows))
        return found

    def notes(self) -> list[str]:
        summary, left_out = self.summary, {task: n for task, n in self.summary["left_out"].items() if n}
        return [
            "* marks an interval without 0. Differences are paired by problem.",
            *(f"Not measured alike: {note}" for note in summary["notes"]),
            *summary["paper_notes"],
            *(f"{task}: {n} problems that not every run has are left out." for task, n in left_out.items()),
        ]

    def figures(self) -> list[tuple[Any, str]]:
        summary = self.summary
        figures = [(difference_figure(summary), "Difference in accuracy, percentage points, with 95 % intervals")]
        if any(summary["lengths"].values()):
            figures.append((lengths_figure(summary), "Response length and accuracy: mean tokens, 25–75 % of responses"))
        if len(self.results) > 1:
            beside = f"Each problem's share of right samples beside that of {summary['baseline']}"
            figures.append((problems_figure(self.results), f"{beside}; on the line nothing changed"))
        return figures

    def write(self, directory: str | Path) -> Path:
        stem, title = Path(directory) / "comparison", f"Comparison with {self.summary['baseline']}"
        return self.write_files(stem, stem.with_suffix(".html"), title, self.results)


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
    directories = dict(zip(names or run_names(runs), map(Path, runs), strict=True))
    found = {name: {task: read_result(run, task) for task in graded_tasks(run)} for name, run in directories.items()}
    first, *others = found
    tasks = [task for task in found[first] if all(task in one for one in found.values())]
    if not tasks:
        has = "; ".join(f"{name} has {', '.join(one) or 'none'}" for name, one in found.items())
        raise ValueError(f"the runs have no task in common, so nothing can be compared: {has}.")
    strict, lenient = (
        {name: {task: one[task].per_problem(lenient=lenient) for task in tasks} for name, one in found.items()}
        for lenient in (False, True)
    )
    shared = {task: [p for p in strict[first][task] if all(p in r[task] for r in strict.values())] for task in tasks}
    if apart := [task for task in tasks if not shared[task]]:
        raise ValueError(f"the runs answered different problems of {apart[0]!r}: none is in all of them.")

    def values(right: Mapping[str, Mapping[str, float]]) -> dict[str, Scores]:
        return {task: np.array([right[task][problem] for problem in shared[task]]) for task in tasks}

    right = {name: values(one) for name, one in strict.items()}
    summary = {
        "baseline": first,
        "problems": {task: len(shared[task]) for task in tasks},
        "accuracy": {name: estimates(right[name]) for name in found},
        "difference": {
            name: estimates({task: right[name][task] - right[first][task] for task in tasks}) for name in others
        },
        "left_out": {task: max(len(one[task]) for one in strict.values()) - len(shared[task]) for task in tasks},
        "paper": published.shares(tasks) if published else {},
        "lenient": {name: estimates(values(one)) for name, one in lenient.items()} if published else {},
        "lengths": {name: response_lengths([one[task] for task in tasks]) for name, one in found.items()},
        "paper_notes": list(published.notes) if published else [],
        "notes": unlike_settings({name: EvalDirectory(run).settings() for name, run in directories.items()}, tasks),
    }
    return Comparison(summary, {name: {task: one[task] for task in tasks} for name, one in found.items()})


def run_names(runs: Sequence[str | Path]) -> list[str]:
    parts = [Path(run).resolve().parts for run in runs]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(one[-depth:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise ValueError(f"the same run is given twice: {', '.join(map(str, runs))}.")


def estimates(per_task: Mapping[str, Scores]) -> dict[str, Any]:
    found = {task: asdict(mean_over_problems(values)) for task, values in per_task.items()}
    return {**found, "macro": asdict(macro_average(list(per_task.values())))}


def response_lengths(results: Sequence[Result]) -> dict[str, float]:
    """The lengths of responses pooled over tasks, in tokens, and the share cut off; empty where none was recorded."""
    drawn = [generation for result in results for generation in result.generations]
    tokens = [one.tokens for one in drawn]
    cut = float(np.mean([one.finish == "length" for one in drawn]))
    return {**lengths(tokens), "truncated": cut} if any(tokens) else {}


def unlike_settings(runs: Mapping[str, Mapping[str, Mapping[str, Any]]], tasks: Sequence[str]) -> list[str]:
    """A line for every setting that is not the same in all runs, with the tasks it concerns."""
    concerned: dict[str, list[str]] = {}
    for task in tasks:
        recorded = {run: settings[task] for run, settings in runs.items() if task in settings}
        keys = (key for one in recorded.values() for key in (*one["protocol"], "backend", "dtype", "reading"))
        for key in dict.fromkeys(keys):
            values = {run: {**one["about"], **one["protocol"], **one}.get(key) for run, one in recorded.items()}
            if any(value != next(iter(values.values())) for value in values.values()):
                text = ", ".join(f"{value} in {run}" for run, value in values.items())
                concerned.setdefault(f"{key} is {text}", []).append(task)
    return [f"{', '.join(names)}: {text}." for text, names in concerned.items()]


def _signed(estimate: Mapping[str, float]) -> str:
    certain = estimate["low"] > 0 or estimate["high"] < 0
    mean, low, high = (f"{100 * estimate[key]:+.1f}" for key in ("mean", "low", "high"))
    return f"{mean}{'*' if certain else ''} [{low}, {high}]"


def difference_figure(summary: Mapping[str, Any]) -> Any:
    tasks = [*summary["problems"], "macro"]
    traces = [
        {"x": tasks, "name": name, **points_with_intervals([cells[task] for task in tasks])}
        for name, cells in (summary["difference"] or summary["accuracy"]).items()
    ]
    return plot(traces, y="points", scattermode="group")


def lengths_figure(summary: Mapping[str, Any]) -> Any:
    traces = []
    for name, one in summary["lengths"].items():
        if one:
            band = {"type": "data", "array": [one["p75"] - one["mean"]], "arrayminus": [one["mean"] - one["p25"]]}
            point = points_with_intervals([summary["accuracy"][name]["macro"]])
            traces.append({"x": [one["mean"]], "name": name, **point, "error_x": band})
    return plot(traces, "tokens", "accuracy, %")


def problems_figure(results: Mapping[str, Mapping[str, Result]]) -> Any:
    """Every problem as a point: its share of right samples in the first run and in another."""
    line = {"dash": "dot", "color": page.GREY}
    traces: list[dict[str, Any]] = [
        {"x": [0, 100], "y": [0, 100], "mode": "lines", "showlegend": False, "hoverinfo": "skip", "line": line}
    ]
    (baseline, first), *others = results.items()
    for name, run in others:
        pairs: Counter[tuple[float, float]] = Counter()
        for task in first:
            before, after = first[task].per_problem(), run[task].per_problem()
            both = [(before[problem], after[problem]) for problem in before if problem in after]
            pairs.update((round(100 * x, 2), round(100 * y, 2)) for x, y in both)
        x, y = zip(*pairs, strict=True)
        marker = {"size": [4 + 3 * float(np.sqrt(count)) for count in pairs.values()], "opacity": 0.6}
        text = [f"{count} problems" for count in pairs.values()]
        traces.append({"x": x, "y": y, "text": text, "name": name, "mode": "markers", "marker": marker})
    return plot(traces, f"{baseline}, %", "the other, %")


@dataclass(frozen=True)
class Published:
    """A table of accuracies by row and task, in per cent, and what a reader should know about it."""

    rows: Mapping[str, Mapping[str, float]]
    methods: Mapping[str, Mapping[str, Any]]  # which {"target": name, "target_kwargs": {…}} a row is, where known
    notes: Sequence[str] = ()

    def shares(self, tasks: Sequence[str]) -> dict[str, dict[str, float]]:
        """The cells of these tasks as shares, rows without any left out; `macro` where no task is missing."""
        found = {row: {task: cells[task] / 100 for task in tasks if task in cells} for row, cells in self.rows.items()}
        for cells in found.values():
            if len(cells) == len(tasks):
                cells["macro"] = sum(cells[task] for task in tasks) / len(tasks)
        return {row: cells for row, cells in found.items() if cells}

    def row_of(self, target: str, hparams: Mapping[str, Any]) -> str | None:
        """The row that a target is; hyper-parameters that the table does not name may be anything."""
        for row, method in self.methods.items():
            named = method.get("target_kwargs", {})
            if method["target"] == target and all(hparams.get(key, value) == value for key, value in named.items()):
                return row
        return None


@cache
def paper() -> dict[str, Any]:
    """Everything that ships: the paper, its methods, ten settings, two ablations, notes."""
    return dict(json.loads(files("qsft.evals").joinpath("published.json").read_text(encoding="utf-8")))


def published_setting(recipe: str) -> Published | None:
    """What the paper prints about a recipe, its rows of the ablation table too; None for a recipe that is not its."""
    found = paper()["settings"].get(recipe)
    if found is None:
        return None
    rows, methods, notes = dict(found["rows"]), dict(paper()["methods"]), [*paper()["notes"][found["kind"]]]
    for ablation in paper()["ablations"].values():
        if ablation["recipe"] == recipe:
            rows |= {row: cells for row, cells in ablation["rows"].items() if cells not in found["rows"].values()}
            methods |= {row: method for row, method in ablation["methods"].items() if row not in methods}
    return Published(rows, methods, [*notes, *paper()["notes"]["eta"]])


def read_published(name: str | Path) -> Published:
    """The numbers of a recipe of the paper (by name or file), or of a JSON file of that shape."""
    found = published_setting(Path(name).stem if str(name).endswith((".yaml", ".yml")) else str(name))
    if found is not None:
        return found
    if not Path(name).is_file():
        known = list(paper()["settings"])
        raise FileNotFoundError(
            f"--paper {name}: no such file, and no setting of the paper.{did_you_mean(str(name), known)} The paper's "
            f"settings are {', '.join(known)}; a file reads {SHAPE}."
        )
    try:
        stored = read_json(Path(name), "")
        rows = {row: {task: float(value) for task, value in cells.items()} for row, cells in stored["rows"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{name} is not a table of published numbers. It should read {SHAPE}.") from error
    return Published(rows, stored.get("methods", {}), stored.get("notes", ()))
