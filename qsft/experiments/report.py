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
from qsft.evals.eval_directory import GRADES
from qsft.evals.figures import lengths_and_accuracy_figure, plot, points_with_intervals
from qsft.evals.findings import CaptionedFigure, Table, percent, to_markdown, with_interval, write_findings
from qsft.evals.published import Published, paper, published_setting
from qsft.evals.report import SUMMARY, summarize
from qsft.evals.results import Result, pooled_lengths
from qsft.experiments.eval_request import EvalRequest
from qsft.files import read_json, shown, write_text
from qsft.recipe.recipe_file import run_name
from qsft.recipe.record import RecipeRecord, read_recipe_record
from qsft.run_directory import BASE, EVALUATION, RECIPE_RECORD, evaluation_directory

UNPUBLISHED = Published({}, paper()["methods"])  # for recipes that the paper has no numbers of
DEFAULT_DIRECTORIES = ("runs", "sweeps", "evals")  # where trainings, sweeps and evaluations of hub models go
FIRST_METHODS = (BASE, "sft", "dft", "kd_hybrid", "target_sft")  # the paper's columns, in its order
CAPTION = "Average accuracy, % [95 % interval], and in brackets what the paper prints for the same benchmarks"
NO_CELL = "–"


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


@dataclass(frozen=True)
class RunsReport:
    """All evaluated runs, grouped by setting.

    Args:
        summary: the content of report.json.
    """

    summary: Mapping[str, Any]

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.summary["settings"]

    @property
    def methods(self) -> list[str]:
        return self.summary["methods"]

    def __str__(self) -> str:
        return to_markdown(self.tables(), self.notes())

    def tables(self) -> list[Table]:
        tables = [self._accuracy_table()]
        if self.summary["missing"]:
            rows = [[one["setting"], one["method"], one["command"]] for one in self.summary["missing"]]
            tables.append(Table("Missing, and the command that fills it", ["setting", "method", "command"], rows))
        return tables

    def _accuracy_table(self) -> Table:
        """Strict and lenient averages of each setting, then the settings won."""
        rows = []
        for name, setting in self.settings.items():
            cells = [setting["cells"].get(method) for method in self.methods]
            strict = [with_interval(cell["acc"]) if cell else NO_CELL for cell in cells]
            lenient = [percent(cell["lenient"]["mean"]) if cell else "" for cell in cells]
            rows.append([name, *_with_published(setting, self.methods, strict)])
            rows.append(["· lenient", *lenient])
        rows.append(["wins", *(str(self.summary["wins"].get(method, 0)) for method in self.methods)])
        rows.append(["wins, published", *(str(self._published_wins(method)) for method in self.methods)])
        return Table(CAPTION, ["", *self.methods], rows)

    def _published_wins(self, method: str) -> int:
        """The settings in which the published row of a method has the highest published average."""
        won = [one for one in self.settings.values() if one["best_published_row"] is not None]
        return sum(one["published_rows"].get(method) == one["best_published_row"] for one in won)

    def notes(self) -> list[str]:
        tasks = [f"{name}: {', '.join(setting['tasks'])}." for name, setting in self.settings.items()]
        compared = sum(one["best_published_row"] is not None for one in self.settings.values())
        published = [
            f"As published, {row} has the highest average in {wins} of {compared} settings."
            for row, wins in self.summary["published_wins"].items()
        ]
        first = "Wins: settings in which a method has the highest average."
        return [first, *published, *tasks, *self.summary["notes"]]

    def figures(self) -> list[CaptionedFigure]:
        accuracy = "Average accuracy by setting, with 95 % intervals; crosses are published"
        figures = [CaptionedFigure(self._accuracy_figure(), accuracy)]
        for name, setting in self.settings.items():
            cells = {method: setting["cells"][method] for method in self.methods if method in setting["cells"]}
            lengths = {method: cell["lengths"] for method, cell in cells.items()}
            figure = lengths_and_accuracy_figure(lengths, {method: cell["acc"] for method, cell in cells.items()})
            caption = (
                f"Response lengths in {name}: bars are the mean, error bars 25–75 % of responses, the line is accuracy"
            )
            figures.append(CaptionedFigure(figure, caption))
        return figures

    def _accuracy_figure(self) -> Any:
        """The averages by setting, one color per method, published values as crosses of that color."""
        traces = []
        for method, color in zip(self.methods, page.COLORS * len(self.methods)):
            evaluated = [name for name, one in self.settings.items() if method in one["cells"]]
            points = points_with_intervals([self.settings[name]["cells"][method]["acc"] for name in evaluated])
            marker = {**points["marker"], "color": color}
            traces.append({"x": evaluated, "name": method, "mode": "markers", **points, "marker": marker})
            published = [name for name, one in self.settings.items() if method in one["published"]]
            values = [100 * self.settings[name]["published"][method] for name in published]
            cross = {"symbol": "x-thin", "size": 9, "color": color, "line": {"width": 2, "color": color}}
            label = f"{method}, published"
            traces.append({"x": published, "y": values, "name": label, "mode": "markers", "marker": cross})
        return plot(traces, y="%", yaxis_rangemode="tozero", scattermode="group")

    def to_latex(self) -> str:
        """Return a booktabs table; the best method of each setting is bold, published values stand in brackets."""
        rows = [["setting", *self.methods]]
        for name, setting in self.settings.items():
            cells = [_latex_cell(setting, method) for method in self.methods]
            rows.append([name, *_with_published(setting, self.methods, cells)])
        head, *body = [" & ".join(row).replace("_", r"\_") + r" \\" for row in rows]
        begin = [f"% {CAPTION}", rf"\begin{{tabular}}{{l{'r' * len(self.methods)}}}", r"\toprule"]
        return "\n".join([*begin, head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])

    def write(self, directory: Path) -> Path:
        """Write report.json, report.md, report.tex and report.html; return the page's path."""
        write_text(directory / "report.tex", self.to_latex())
        return write_findings(
            directory / "report.json",
            directory / "report.html",
            title="Settings and methods",
            summary=self.summary,
            tables=self.tables(),
            notes=self.notes(),
            figures=self.figures(),
        )


def report_runs(directories: Sequence[Path]) -> RunsReport:
    """Return the report of every evaluated run below some directories.

    Args:
        directories: where to look; by default runs, sweeps and evals, as far as they exist.

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
    best_methods = [_best_method(setting["cells"]) for setting in settings.values()]
    best_rows = [setting["best_published_row"] for setting in settings.values()]
    summary = {
        "settings": settings,
        "methods": [method for method in methods if method in found],
        "wins": dict(Counter(method for method in best_methods if method is not None)),
        "published_wins": dict(Counter(row for row in best_rows if row is not None)),
        "missing": [
            cell for name, setting in settings.items() for cell in _missing_cells(name, setting, methods, unevaluated)
        ],
        "notes": list(dict.fromkeys(note for setting in settings.values() for note in setting["notes"])),
    }
    return RunsReport(summary)


def find_evaluated_models(directories: Sequence[Path]) -> tuple[list[EvaluatedModel], list[Path]]:
    """Return every evaluation below some directories, the newest last, and the trained runs without an evaluation."""
    missing = [str(directory) for directory in directories if not directory.is_dir()]
    if missing:
        raise FileNotFoundError(
            f"there is no directory {', '.join(missing)} to collect evaluated runs from. Name one that exists."
        )
    summaries = {file for directory in directories for file in directory.rglob(SUMMARY)}
    complete = [file for file in summaries if (file.parent / GRADES).is_dir()]
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
    published = published_setting(name) or UNPUBLISHED
    rows = _published_rows(published, newest.values())
    averages = {row: cells["macro"] for row, cells in published.shares(tasks).items() if "macro" in cells}
    base_request = EvalRequest.for_untrained_student(
        {**newest_run.record.values, "model_name_or_path": newest_run.student}, {}
    )
    return {
        "tasks": tasks,
        "student": newest_run.student,
        "base": shlex.join(["qsft", "eval", *base_request.argv()]),
        "cells": {method: _cell(one, tasks) for method, one in newest.items()},
        "published_rows": rows,
        "published": {method: averages[row] for method, row in rows.items() if row in averages},
        "best_published_row": published.best_row(tasks),
        "notes": [*notes, *published.notes],
    }


def _cell(evaluated: EvaluatedModel, tasks: Sequence[str]) -> dict[str, Any]:
    results = [evaluated.results[task] for task in tasks]
    strict = [result.problem_means() for result in results]
    lenient = [result.problem_means(lenient=True) for result in results]
    return {
        "directory": str(evaluated.directory),
        "acc": asdict(stats.macro_average(strict)),
        "lenient": asdict(stats.macro_average(lenient)),
        "by_task": {task: float(values.mean()) for task, values in zip(tasks, strict)},
        "lengths": pooled_lengths(results),
    }


def _published_rows(published: Published, evaluated: Iterable[EvaluatedModel]) -> dict[str, str]:
    """The published row of each of the paper's methods and of each evaluated one, by its own hyper-parameters."""
    rows = {method: published.row_of(method, {}) for method in FIRST_METHODS}
    rows |= {one.method: published.row_of(one.target, one.target_kwargs) for one in evaluated}
    return {method: row for method, row in rows.items() if row is not None}


def _best_method(cells: Mapping[str, Any]) -> str | None:
    """The method that alone has the highest average; None for a tie, or where only one was evaluated."""
    averages = {method: cell["acc"]["mean"] for method, cell in cells.items()}
    highest = max(averages.values())
    best = [method for method, average in averages.items() if average == highest]
    return best[0] if len(best) == 1 and len(averages) > 1 else None


def _missing_cells(
    name: str, setting: Mapping[str, Any], methods: Sequence[str], unevaluated: Sequence[Path]
) -> Iterator[dict[str, str]]:
    """Yield the setting, the method and the command that fills it for each empty cell."""
    commands = {BASE: setting["base"]}
    for run in unevaluated:
        record = read_recipe_record(run)
        if record is not None and record.recipe == name:
            commands[run_name(record.target, record.target_kwargs)] = f"qsft eval {shlex.quote(shown(run))}"
    rows = setting["published_rows"]
    filled = {rows[method] for method in setting["cells"] if method in rows}
    for method in methods:
        if method in setting["cells"]:
            continue
        # Where target_sft-eta0.5 was evaluated, the paper's Target-SFT is not missing.
        if method in FIRST_METHODS and rows.get(method) in filled:
            continue
        command = commands.get(method, f"qsft sweep {name} --grid target={method}")
        yield {"setting": name, "method": method, "command": command}


def _with_published(setting: Mapping[str, Any], methods: Sequence[str], cells: Sequence[str]) -> list[str]:
    """Append the published average, in brackets, to the cells that have one."""
    published = setting["published"]
    return [
        f"{cell} ({percent(published[method])})" if method in published else cell
        for method, cell in zip(methods, cells)
    ]


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
