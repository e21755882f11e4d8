"""The paper's main table from what was measured here: every evaluated run, by setting and method.

A setting is a recipe; its cells are averages over its benchmarks, with intervals, the published ones beside. What is
missing is named with the command that fills it. Written as report.json, .md, .tex and a page with the first figure.
"""

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qsft import page
from qsft.evals import stats
from qsft.evals.comparison import Published, paper, published_setting
from qsft.evals.eval_directory import graded_tasks, read_result
from qsft.evals.report import paragraphs, percent, plot, points_with_intervals, with_interval
from qsft.evals.report import to_markdown as tables_to_markdown
from qsft.files import read_json, shown, write_json, write_text
from qsft.recipe.recipe_file import run_name
from qsft.recipe.trained import BASE, RECORD, base_words, recorded, student_of

PAPER_METHODS = Published({}, paper()["methods"])
DEFAULT_PLACES = ("runs", "sweeps", "evals")  # where trainings, sweeps and evaluations of hub models go by default
SUMMARY = "summary.json"  # what an evaluation writes last
FIRST = (BASE, "sft", "dft", "kd_hybrid", "target_sft")  # the paper's columns, in its order
UNTRAINED: dict[str, Any] = {"recipe": None, "target": BASE, "target_kwargs": {}, "values": {}}
CAPTION = "Average accuracy, % [95 % interval], and in brackets what the paper prints for the same benchmarks"
Overview = Mapping[str, Any]


class Evaluated(NamedTuple):
    """An evaluation, and the record of the run: UNTRAINED for a model that no recipe trained."""

    directory: Path
    student: str
    record: Mapping[str, Any]
    target: tuple[str, Mapping[str, Any]]
    method: str


def collect(places: Sequence[Path]) -> tuple[list[Evaluated], list[Path]]:
    """Every evaluation below some directories, the newest last, and the trained runs that were not evaluated."""
    if absent := ", ".join(str(place) for place in places if not place.is_dir()):
        raise FileNotFoundError(f"there is no directory {absent} to collect evaluated runs from. Name one that exists.")
    found = {path.parent for place in places for path in place.rglob(SUMMARY) if (path.parent / "grades").is_dir()}
    newest_last = sorted(found, key=lambda directory: (directory / SUMMARY).stat().st_mtime_ns)
    trained = sorted({path.parent for place in places for path in place.rglob(RECORD)})
    return [_evaluated(one) for one in newest_last], [run for run in trained if not (run / "eval" / SUMMARY).is_file()]


def _evaluated(directory: Path) -> Evaluated:
    remedy = "Evaluate again with --fresh, or delete the directory."
    model = str(read_json(directory / SUMMARY, remedy)["settings"]["model"])
    record = (directory.name == "eval" and recorded(directory.parent)) or UNTRAINED
    target = record["target"], record["target_kwargs"]
    return Evaluated(directory, record["values"].get("model_name_or_path") or model, record, target, run_name(*target))


def overview(places: Sequence[Path]) -> Overview:
    """What report.json holds: settings with their cells and published numbers, wins, what is missing, notes."""
    evaluations, unevaluated = collect(places or [place for place in map(Path, DEFAULT_PLACES) if place.is_dir()])
    names = dict.fromkeys(str(one.record["recipe"]) for one in evaluations if one.record["recipe"] is not None)
    if not names:
        where = ", ".join(map(str, places or DEFAULT_PLACES))
        raise FileNotFoundError(f"no evaluated run of a recipe below {where}. Train one and evaluate it first.")
    order = [*paper()["settings"], *names]
    settings = {name: _setting(name, evaluations) for name in sorted(names, key=order.index)}
    seen = [method for one in settings.values() for method in one["cells"]]
    methods = list(dict.fromkeys([*FIRST, *seen]))
    return {
        "settings": settings,
        "methods": [method for method in methods if method in seen],
        "wins": _wins([{m: cell["acc"]["mean"] for m, cell in one["cells"].items()} for one in settings.values()]),
        "published_wins": _wins([one["published"] for one in settings.values()]),
        "missing": [line for name, one in settings.items() for line in _missing(name, one, methods, unevaluated)],
        "notes": list(dict.fromkeys(note for setting in settings.values() for note in setting["notes"])),
    }


def _setting(name: str, evaluations: Sequence[Evaluated]) -> dict[str, Any]:
    own = [one for one in evaluations if one.record["recipe"] == name]
    base = [one for one in evaluations if one.record is UNTRAINED and one.student == own[-1].student]
    # Most runs say what the setting's tasks are; a run that lacks one of them is named as missing.
    tasks = list(Counter(tuple(graded_tasks(one.directory)) for one in own).most_common(1)[0][0])
    newest = {one.method: one for one in (*base, *own) if set(tasks) <= set(graded_tasks(one.directory))}
    counts = Counter(one.method for one in own)
    notes = [f"{name}: several runs of {method}; the newest counts." for method, n in counts.items() if n > 1]
    published = published_setting(name)
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
    scores, lenient = (
        [np.array(list(result.per_problem(lenient=lenient).values())) for result in results]
        for lenient in (False, True)
    )
    return {
        "directory": str(one.directory),
        "row": PAPER_METHODS.row_of(*one.target),
        "acc": asdict(stats.macro_average(scores)),
        "lenient": asdict(stats.macro_average(lenient)),
        "by_task": {task: float(values.mean()) for task, values in zip(tasks, scores)},
    }


def _published(table: Published, runs: Any, tasks: Sequence[str]) -> dict[str, float]:
    """The published averages over the same tasks, under the names of methods here."""
    averages = {row: cells["macro"] for row, cells in table.shares(tasks).items() if "macro" in cells}
    named = [(method["target"], row) for row, method in paper()["methods"].items()]
    named += [(run.method, table.row_of(*run.target)) for run in runs]
    return {method: averages[row] for method, row in named if row in averages}


def _wins(settings: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """In how many settings a method has the highest average, where there are two or more to compare."""
    best = ([m for m in cells if cells[m] == max(cells.values())] for cells in settings if len(cells) > 1)
    return dict(Counter(methods[0] for methods in best if len(methods) == 1))  # a tie is nobody's win


def _missing(name: str, setting: Mapping[str, Any], methods: Sequence[str], trained: Sequence[Path]) -> Iterator[str]:
    """A line for each cell that is empty: what it is, and the command that fills it."""
    commands = {BASE: setting["base"]}
    for run in trained:
        record = recorded(run)
        if record["recipe"] == name:
            commands[run_name(record["target"], record["target_kwargs"])] = f"qsft eval {shlex.quote(shown(run))}"
    rows = {cell["row"] for cell in setting["cells"].values()}  # target_sft-eta0.2 is the paper's Target-SFT too
    for method in methods:
        if method not in setting["cells"] and not (method in FIRST and PAPER_METHODS.row_of(method, {}) in rows):
            yield f"{name}, {method}: {commands.get(method, f'qsft sweep {name} --grid target={method}')}"


def write_overview(summary: Overview, directory: Path) -> Path:
    write_json(directory / "report.json", summary)
    write_text(directory / "report.md", to_markdown(summary))
    write_text(directory / "report.tex", to_latex(summary))
    body = page.table(*table(summary), CAPTION) + paragraphs(notes(summary))
    body += page.figure(figure(summary), "Average accuracy by setting, with 95 % intervals; crosses are published")
    if summary["missing"]:
        body += page.table(["missing, and the command that fills it"], [[line] for line in summary["missing"]])
    return page.write_page(directory / "report.html", page.page("Settings and methods", body))


def table(summary: Overview) -> tuple[list[str], list[list[str]]]:
    methods, rows = summary["methods"], []
    for name, setting in summary["settings"].items():
        cells = [setting["cells"].get(method) for method in methods]
        shown = [with_interval(cell["acc"]) if cell else "–" for cell in cells]
        rows.append([name, *_with_published(setting, methods, shown)])
        rows.append(["· lenient", *(percent(cell["lenient"]["mean"]) if cell else "" for cell in cells)])
    for title, key in (("wins", "wins"), ("wins, published", "published_wins")):
        rows.append([title, *(str(summary[key].get(method, 0)) for method in methods)])
    return ["", *methods], rows


def _with_published(setting: Mapping[str, Any], methods: Sequence[str], shown: Sequence[str]) -> list[str]:
    printed = [setting["published"].get(method) for method in methods]
    return [cell if share is None else f"{cell} ({percent(share)})" for cell, share in zip(shown, printed)]


def notes(summary: Overview) -> list[str]:
    tasks = [f"{name}: {', '.join(setting['tasks'])}." for name, setting in summary["settings"].items()]
    return ["Wins: settings in which a method has the highest average.", *tasks, *summary["notes"]]


def to_markdown(summary: Overview) -> str:
    missing = ["", "Missing, and the command that fills it:", "", *(f"    {line}" for line in summary["missing"]), ""]
    text = tables_to_markdown([(CAPTION, *table(summary))], notes(summary))
    return text + "\n".join(missing if summary["missing"] else [])


def to_latex(summary: Overview) -> str:
    """A booktabs table; the best of each setting is bold, published values stand in brackets."""
    methods = summary["methods"]
    rows = [["setting", *methods]]
    for name, setting in summary["settings"].items():
        means = {method: cell["acc"]["mean"] for method, cell in setting["cells"].items()}
        best = max(means, key=lambda method: means[method]) if len(means) > 1 else None
        cells = {method: percent(mean) for method, mean in means.items()}
        cells |= {best: rf"\textbf{{{cells[best]}}}"} if best else {}
        for method, cell in setting["cells"].items():
            cells[method] += rf" {{\scriptsize$\pm${50 * (cell['acc']['high'] - cell['acc']['low']):.1f}}}"
        rows.append([name, *_with_published(setting, methods, [cells.get(method, "--") for method in methods])])
    head, *body = [" & ".join(row).replace("_", r"\_") + r" \\" for row in rows]
    begin = [f"% {CAPTION}", rf"\begin{{tabular}}{{l{'r' * len(methods)}}}", r"\toprule"]
    return "\n".join([*begin, head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", ""])


def figure(summary: Overview) -> Any:
    """Averages by setting, one colour per method, published values as crosses of the same colour."""
    traces, settings = [], summary["settings"]
    for method, colour in zip(summary["methods"], page.COLOURS * len(summary["methods"])):
        have = [name for name, one in settings.items() if method in one["cells"]]
        points = points_with_intervals([settings[name]["cells"][method]["acc"] for name in have])
        marker = {**points["marker"], "color": colour}
        traces.append({"x": have, "name": method, "mode": "markers", **points, "marker": marker})
        known = [name for name, one in settings.items() if method in one["published"]]
        printed = [100 * settings[name]["published"][method] for name in known]
        cross = {"symbol": "x-thin", "size": 9, "color": colour, "line": {"width": 2, "color": colour}}
        traces.append({"x": known, "y": printed, "name": f"{method}, published", "mode": "markers", "marker": cross})
    return plot(traces, y="%", yaxis_rangemode="tozero", scattermode="group")
