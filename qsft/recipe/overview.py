"""The paper's main table from what was measured here: every evaluated run, by setting and method.

A setting is a recipe; its cells are averages over its benchmarks, with intervals, the published ones beside. What is
missing is named with the command that fills it.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qsft.evals import stats
from qsft.evals.comparison import problem_scores
from qsft.evals.eval_directory import graded_tasks, read_result
from qsft.evals.published import Published, paper, published_setting
from qsft.files import read_json, shown
from qsft.recipe.recipe_file import run_name
from qsft.recipe.trained import BASE, RECORD, base_words, recorded, student_of

PAPER_METHODS = Published({}, paper()["methods"])
SUMMARY = "summary.json"  # what an evaluation writes last
FIRST = (BASE, "sft", "dft", "kd_hybrid", "target")  # the paper's columns, in its order


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: of a run that knows its recipe, or of a model that no recipe trained (then `setting` is None)."""

    directory: Path
    model: str
    setting: str | None = None
    target: str = BASE
    hparams: Mapping[str, Any] | None = None
    record: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return run_name(self.target, self.hparams or {})

    @property
    def student(self) -> str:
        """What was trained."""
        return str(self.record.get("values", {}).get("model_name_or_path") or self.model)


def collect(places: Sequence[Path]) -> tuple[list[Evaluated], list[Path]]:
    """Every evaluation below some directories, the newest last, and the trained runs that were not evaluated."""
    found = {path.parent for place in places for path in place.rglob(SUMMARY) if (path.parent / "grades").is_dir()}
    newest_last = sorted(found, key=lambda directory: (directory / SUMMARY).stat().st_mtime_ns)
    trained = sorted({path.parent for place in places for path in place.rglob(RECORD)})
    return [_evaluated(one) for one in newest_last], [run for run in trained if not (run / "eval" / SUMMARY).is_file()]


def _evaluated(directory: Path) -> Evaluated:
    remedy = "Evaluate again with --fresh, or delete the directory."
    model = str(read_json(directory / SUMMARY, remedy)["settings"]["model"])
    record = recorded(directory.parent) if directory.name == "eval" else {}
    if not record:
        return Evaluated(directory, model)
    return Evaluated(directory, model, record["recipe"], record["target"], record["target_kwargs"], record)


def overview(places: Sequence[Path]) -> dict[str, Any]:
    """What report.json holds: settings with their cells and published numbers, wins, what is missing, notes."""
    evaluations, unevaluated = collect(places)
    names = dict.fromkeys(one.setting for one in evaluations if one.setting is not None)
    if not names:
        where = ", ".join(map(str, places))
        raise FileNotFoundError(
            f"no evaluated run of a recipe below {where}. Train one (`qsft train RECIPE`), evaluate it (`qsft eval "
            "RUN`) and report again."
        )
    order = [*paper()["settings"], *names]
    settings = {str(name): _setting(str(name), evaluations) for name in sorted(names, key=order.index)}
    seen = dict.fromkeys(method for setting in settings.values() for method in setting["cells"])
    methods = [*FIRST, *(method for method in seen if method not in FIRST)]
    missing = [line for name, one in settings.items() for line in _missing(name, one, methods, unevaluated)]
    return {
        "settings": settings,
        "methods": [method for method in methods if any(method in one["cells"] for one in settings.values())],
        "wins": _wins([{m: cell["acc"]["mean"] for m, cell in one["cells"].items()} for one in settings.values()]),
        "published_wins": _wins([one["published"] for one in settings.values()]),
        "missing": missing,
        "notes": list(dict.fromkeys(note for setting in settings.values() for note in setting["notes"])),
    }


def _setting(name: str, evaluations: Sequence[Evaluated]) -> dict[str, Any]:
    """The cells of a setting: its runs, and its student untrained."""
    own = [one for one in evaluations if one.setting == name]
    base = [one for one in evaluations if one.setting is None and one.model == own[-1].student]
    # Most runs say what the setting's tasks are; a run that lacks one of them is named as missing.
    tasks = list(Counter(tuple(graded_tasks(one.directory)) for one in own).most_common(1)[0][0])
    whole = [one for one in (*base, *own) if set(tasks) <= set(graded_tasks(one.directory))]
    newest = {one.method: one for one in whole}
    published = published_setting(name)
    notes = [f"{name}: several runs of {method}; the newest counts." for method, n in
             Counter(one.method for one in own).items() if n > 1]  # fmt: skip
    return {
        "tasks": tasks,
        "student": own[-1].student,
        "base": shlex.join(["qsft", "eval", *base_words(student_of(own[-1].record), ())]),
        "cells": {method: _cell(one, tasks) for method, one in newest.items()},
        "published": _published(published, newest.values(), tasks) if published else {},
        "notes": [*notes, *(published.notes if published else ())],
    }


def _cell(one: Evaluated, tasks: Sequence[str]) -> dict[str, Any]:
    results = [read_result(one.directory, task) for task in tasks]
    scores = [np.array(list(problem_scores(result).values())) for result in results]
    lenient = [np.array(list(problem_scores(result, lenient=True).values())) for result in results]
    return {
        "directory": str(one.directory),
        "row": PAPER_METHODS.row_of(one.target, one.hparams or {}),
        "acc": asdict(stats.macro_average(scores)),
        "lenient": asdict(stats.macro_average(lenient)),
        "by_task": {task: float(values.mean()) for task, values in zip(tasks, scores)},
    }


def _published(table: Published, runs: Any, tasks: Sequence[str]) -> dict[str, float]:
    """The published averages over the same tasks, under the names of methods here."""
    shares = table.shares(tasks)
    named = {row: method["target"] for row, method in paper()["methods"].items()}
    found = {named[row]: cells["macro"] for row, cells in shares.items() if row in named and "macro" in cells}
    for run in runs:
        row = table.row_of(run.target, run.hparams or {})
        if row is not None and "macro" in shares.get(row, {}):
            found[run.method] = shares[row]["macro"]
    return found


def _wins(settings: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """In how many settings a method has the highest average, where there are two or more to compare."""
    best = (
        [method for method in cells if cells[method] == max(cells.values())] for cells in settings if len(cells) > 1
    )
    return dict(Counter(methods[0] for methods in best if len(methods) == 1))  # a tie is nobody's win


def _missing(name: str, setting: Mapping[str, Any], methods: Sequence[str], trained: Sequence[Path]) -> Iterator[str]:
    """A line for each cell that is empty: what it is, and the command that fills it."""
    waiting = {}
    for run in trained:
        record = recorded(run)
        if record["recipe"] == name:
            waiting[run_name(record["target"], record["target_kwargs"])] = run
    rows = {cell["row"] for cell in setting["cells"].values()}  # target-eta0.2 is the paper's Target-SFT too
    for method in methods:
        if method in setting["cells"] or (method in FIRST and PAPER_METHODS.row_of(method, {}) in rows):
            continue
        command = f"qsft sweep {name} --grid target={method}"
        if method in waiting:
            command = f"qsft eval {shlex.quote(shown(waiting[method]))}"
        elif method == BASE:
            command = setting["base"]
        yield f"{name}, {method}: {command}"
