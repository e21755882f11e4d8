"""The paper's main table from the evaluations on this machine: settings × methods, with the published numbers beside.

A setting is a recipe; a cell is the average over the setting's benchmarks with its interval. A missing cell is listed
with the command that fills it. Written as report.json, report.md, report.tex and report.html.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from qsft import page
from qsft.evals import stats
from qsft.evals.figures import lengths_and_accuracy_figure, plot, points_with_intervals
from qsft.evals.findings import Table, paragraphs, percent, with_interval
from qsft.evals.findings import to_markdown as tables_to_markdown
from qsft.evals.published import Published, paper, published_setting
from qsft.evals.report import summarize
from qsft.evals.results import Result, pooled_lengths
from qsft.experiments.eval_request import EvalRequest
from qsft.files import read_json, shown, write_json, write_text
from qsft.recipe.recipe_file import run_name
from qsft.recipe.record import RecipeRecord, read_recipe_record
from qsft.run_directory import BASE, EVALUATION, RECIPE_RECORD, evaluation_directory

PAPER_METHODS = Published({}, paper()["methods"])
DEFAULT_DIRECTORIES = ("runs", "sweeps", "evals")  # where trainings, sweeps and evaluations of hub models go
SUMMARY = "summary.json"  # the last file that an evaluation writes
FIRST_METHODS = (BASE, "sft", "dft", "kd_hybrid", "target_sft")  # the paper's columns, in its order
CAPTION = "Average accuracy, % [95 % interval], and in brackets what the paper prints for the same benchmarks"
NO_CELL = "–"

Summary = Mapping[str, Any]  # the content of report.json


@dataclass(frozen=True)
class EvaluatedModel:
    """An evaluation, and the record of the run that it measures; None for a model that no recipe trained."""

    directory: Path
    model: str
    record: RecipeRecord | None

    @cached_property
    def results(self) -> Mapping[str, Result]:
        """The graded responses by task."""
        return summarize(self.directory).results

    @property
    def student(self) -> str:
        """The model before training."""
        if self.record is None:
            return self.model
        return self.record.student or self.model

    @property
    def target(self) -> str:
        return BASE if self.record is None else self.record.target

    @property
    def target_kwargs(self) -> Mapping[str, Any]:
        return {} if self.record is None else self.record.target_kwargs

    @property
    def method(self) -> str:
        return run_name(self.target, self.target_kwargs)


def summarize_runs(directories: Sequence[Path]) -> Summary:
    """Return the content of report.json for every evaluated run below some directories.

    Args:
        directories: Where to look; by default runs, sweeps and evals, as far as they exist.

    Raises:
        FileNotFoundError: A directory does not exist, or no evaluated run of a recipe was found.
    """
    existing = [Path(name) for name in DEFAULT_DIRECTORIES if Path(name).is_dir()]
    evaluations, unevaluated = find_evaluated_models(directories or existing)
    recipes = {one.record.recipe for one in evaluations if one.record is not None}
    if not recipes:
        where = ", ".join(map(str, directories or DEFAULT_DIRECTORIES))
        raise FileNotFoundError(f"no evaluated run of a recipe below {where}. Train one and evaluate it first.")
    settings = {name: _summarize_setting(name, evaluations) for name in _in_paper_order(recipes)}
    found = {method for setting in settings.values() for method in setting["cells"]}
    methods = [*FIRST_METHODS, *sorted(found - set(FIRST_METHODS))]
    means = [{method: cell["acc"]["mean"] for method, cell in one["cells"].items()} for one in settings.values()]
    return {
        "settings": settings,
        "methods": [method for method in methods if method in found],
        "wins": _count_wins(means),
        "published_wins": _count_wins([setting["published"] for setting in settings.values()]),
        "missing": [
            line for name, setting in settings.items() for line in _missing_cells(name, setting, methods, unevaluated)
        ],
        "notes": list(dict.fromkeys(note for setting in settings.values() for note in setting["notes"])),
    }


def find_evaluated_models(directories: Sequence[Path]) -> tuple[list[EvaluatedModel], list[Path]]:
    """Return every evaluation below some directories, the newest last, and the trained runs without an evaluation."""
    missing = [str(directory) for directory in directories if not directory.is_dir()]
    if missing:
        raise FileNotFoundError(
            f"there is no directory {', '.join(missing)} to collect evaluated runs from. Name one that exists."
        )
    summaries = {file for directory in directories for file in directory.rglob(SUMMARY)}
    complete = [file for file in summaries if (file.parent / "grades").is_dir()]
    newest_last = sorted(complete, key=lambda file: file.stat().st_mtime_ns)
    runs = sorted({file.parent for directory in directories for file in directory.rglob(RECIPE_RECORD)})
    unevaluated = [run for run in runs if not (evaluation_directory(run) / SUMMARY).is_file()]
    return [_read_evaluated_model(file.parent) for file in newest_last], unevaluated


def _read_evaluated_model(directory: Path) -> EvaluatedModel:
    summary = read_json(directory / SUMMARY, "Evaluate again with --overwrite, or delete the directory.")
    record = read_recipe_record(directory) if directory.name == EVALUATION else None
    return EvaluatedModel(directory, str(summary["settings"]["model"]), record)


def _in_paper_order(recipes: Iterable[str]) -> list[str]:
    """The paper's settings in its order, then the others by name."""
    names = set(recipes)
    published = [name for name in paper()["settings"] if name in names]
    return [*published, *sorted(names - set(published))]


def _summarize_setting(name: str, evaluations: Sequence[EvaluatedModel]) -> dict[str, Any]:
    """The cells of one recipe, with the published numbers for the same tasks."""
    runs = [one for one in evaluations if one.record is not None and one.record.recipe == name]
    newest_run = runs[-1]
    assert newest_run.record is not None
    untrained = [one for one in evaluations if one.record is None and one.model == newest_run.student]
    # The setting's tasks are those of most runs; a run that lacks one of them is listed as missing.
    task_lists = Counter(tuple(sorted(one.results)) for one in runs)
    tasks = list(task_lists.most_common(1)[0][0])
    comparable = [one for one in (*untrained, *runs) if set(tasks) <= set(one.results)]
    newest = {one.method: one for one in comparable}
    counts = Counter(one.method for one in runs)
    notes = [f"{name}: several runs of {method}; the newest counts." for method, n in counts.items() if n > 1]
    published = published_setting(name)
    base_request = EvalRequest.for_untrained_student(
        {**newest_run.record.values, "model_name_or_path": newest_run.student}, {}
    )
    return {
        "tasks": tasks,
        "student": newest_run.student,
        "base": shlex.join(["qsft", "eval", *base_request.argv()]),
        "cells": {method: _cell(one, tasks) for method, one in newest.items()},
        "published": _published_averages(published, newest.values(), tasks) if published else {},
        "notes": [*notes, *(published.notes if published else ())],
    }


def _cell(one: EvaluatedModel, tasks: Sequence[str]) -> dict[str, Any]:
    results = [one.results[task] for task in tasks]
    strict = [result.problem_means() for result in results]
    lenient = [result.problem_means(lenient=True) for result in results]
    return {
        "directory": str(one.directory),
        "row": PAPER_METHODS.row_of(one.target, one.target_kwargs),
        "acc": asdict(stats.macro_average(strict)),
        "lenient": asdict(stats.macro_average(lenient)),
        "by_task": {task: float(values.mean()) for task, values in zip(tasks, strict)},
        "lengths": pooled_lengths(results),
    }


def _published_averages(
    published: Published, evaluated: Iterable[EvaluatedModel], tasks: Sequence[str]
) -> dict[str, float]:
    """The published averages over the same tasks, under the names of the methods here."""
    averages = {row: cells["macro"] for row, cells in published.shares(tasks).items() if "macro" in cells}
    rows = {method["target"]: row for row, method in paper()["methods"].items()}
    for one in evaluated:
        row = published.row_of(one.target, one.target_kwargs)
        if row is not None:
            rows[one.method] = row
    return {method: averages[row] for method, row in rows.items() if row in averages}


def _count_wins(settings: Iterable[Mapping[str, float]]) -> dict[str, int]:
    """Count the settings in which a method alone has the highest average of two or more methods."""
    wins: Counter[str] = Counter()
    for averages in settings:
        if len(averages) < 2:
            continue
        highest = max(averages.values())
        best = [method for method, average in averages.items() if average == highest]
        if len(best) == 1:
            wins[best[0]] += 1
    return dict(wins)


def _missing_cells(
    name: str, setting: Mapping[str, Any], methods: Sequence[str], unevaluated: Sequence[Path]
) -> Iterator[str]:
    """Yield a line for each empty cell: the setting, the method and the command that fills it."""
    commands = {BASE: setting["base"]}
    for run in unevaluated:
        record = read_recipe_record(run)
        if record is not None and record.recipe == name:
            commands[run_name(record.target, record.target_kwargs)] = f"qsft eval {shlex.quote(shown(run))}"
    published_rows = {cell["row"] for cell in setting["cells"].values()}
    for method in methods:
        if method in setting["cells"]:
            continue
        # target_sft-eta0.5 fills the paper's column Target-SFT as well.
        if method in FIRST_METHODS and PAPER_METHODS.row_of(method, {}) in published_rows:
            continue
        command = commands.get(method, f"qsft sweep {name} --grid target={method}")
        yield f"{name}, {method}: {command}"


def write_report(summary: Summary, directory: Path) -> Path:
    """Write the report in its four forms; return the page."""
    write_json(directory / "report.json", summary)
    write_text(directory / "report.md", to_markdown(summary))
    write_text(directory / "report.tex", to_latex(summary))
    columns, rows = table(summary)
    body = page.table(columns, rows, CAPTION) + paragraphs(notes(summary))
    body += page.figure(figure(summary), "Average accuracy by setting, with 95 % intervals; crosses are published")
    for name, setting in summary["settings"].items():
        caption = (
            f"Response lengths in {name}: bars are the mean, error bars 25–75 % of responses, the line is accuracy"
        )
        body += page.figure(_lengths_figure(setting, summary["methods"]), caption)
    if summary["missing"]:
        body += page.table(["missing, and the command that fills it"], [[line] for line in summary["missing"]])
    return page.write_page(directory / "report.html", page.page("Settings and methods", body))


def _lengths_figure(setting: Mapping[str, Any], methods: Sequence[str]) -> Any:
    cells = {method: setting["cells"][method] for method in methods if method in setting["cells"]}
    lengths = {method: cell["lengths"] for method, cell in cells.items()}
    return lengths_and_accuracy_figure(lengths, {method: cell["acc"] for method, cell in cells.items()})


def table(summary: Summary) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: strict and lenient averages of each setting, then the wins."""
    methods = summary["methods"]
    rows = []
    for name, setting in summary["settings"].items():
        cells = [setting["cells"].get(method) for method in methods]
        strict = [with_interval(cell["acc"]) if cell else NO_CELL for cell in cells]
        lenient = [percent(cell["lenient"]["mean"]) if cell else "" for cell in cells]
        rows.append([name, *_with_published(setting, methods, strict)])
        rows.append(["· lenient", *lenient])
    rows.append(["wins", *(str(summary["wins"].get(method, 0)) for method in methods)])
    rows.append(["wins, published", *(str(summary["published_wins"].get(method, 0)) for method in methods)])
    return ["", *methods], rows


def _with_published(setting: Mapping[str, Any], methods: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Append the published average, in brackets, to the cells that have one."""
    published = setting["published"]
    return [
        f"{cell} ({percent(published[method])})" if method in published else cell
        for method, cell in zip(methods, cells)
    ]


def notes(summary: Summary) -> list[str]:
    tasks = [f"{name}: {', '.join(setting['tasks'])}." for name, setting in summary["settings"].items()]
    return ["Wins: settings in which a method has the highest average.", *tasks, *summary["notes"]]


def to_markdown(summary: Summary) -> str:
    columns, rows = table(summary)
    text = tables_to_markdown([Table(CAPTION, columns, rows)], notes(summary))
    if not summary["missing"]:
        return text
    missing = [f"    {line}" for line in summary["missing"]]
    return text + "\n".join(["", "Missing, and the command that fills it:", "", *missing, ""])


def to_latex(summary: Summary) -> str:
    """Return a booktabs table; the best method of each setting is bold, published values stand in brackets."""
    methods = summary["methods"]
    rows = [["setting", *methods]]
    for name, setting in summary["settings"].items():
        cells = [_latex_cell(setting, method) for method in methods]
        rows.append([name, *_with_published(setting, methods, cells)])
    head, *body = [" & ".join(row).replace("_", r"\_") + r" \\" for row in rows]
    begin = [f"% {CAPTION}", rf"\begin{{tabular}}{{l{'r' * len(methods)}}}", r"\toprule"]
    return "\n".join([*begin, head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def _latex_cell(setting: Mapping[str, Any], method: str) -> str:
    cells = setting["cells"]
    if method not in cells:
        return "--"
    accuracy = cells[method]["acc"]
    best = max(cells, key=lambda name: cells[name]["acc"]["mean"])
    mean = percent(accuracy["mean"])
    if method == best and len(cells) > 1:
        mean = rf"\textbf{{{mean}}}"
    half_width = 50 * (accuracy["high"] - accuracy["low"])
    return rf"{mean} {{\scriptsize$\pm${half_width:.1f}}}"


def figure(summary: Summary) -> Any:
    """Return a figure of the averages by setting, one color per method, published values as crosses of that color."""
    settings = summary["settings"]
    methods = summary["methods"]
    traces = []
    for method, color in zip(methods, page.COLORS * len(methods)):
        evaluated = [name for name, one in settings.items() if method in one["cells"]]
        points = points_with_intervals([settings[name]["cells"][method]["acc"] for name in evaluated])
        marker = {**points["marker"], "color": color}
        traces.append({"x": evaluated, "name": method, "mode": "markers", **points, "marker": marker})
        published = [name for name, one in settings.items() if method in one["published"]]
        values = [100 * settings[name]["published"][method] for name in published]
        cross = {"symbol": "x-thin", "size": 9, "color": color, "line": {"width": 2, "color": color}}
        traces.append({"x": published, "y": values, "name": f"{method}, published", "mode": "markers", "marker": cross})
    return plot(traces, y="%", yaxis_rangemode="tozero", scattermode="group")
