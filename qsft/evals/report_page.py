"""Pages of evaluations: tables and notes, figures, then every problem with what was answered, filtered and searched.

Numbers of all responses are in the page's data; the texts are packed in chunks that the page unpacks when they are
read, so that a file with 24,000 responses opens at once.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from qsft import page
from qsft.evals.summary import Report, Result, Table, notes_of, task_table

BINS = 40
CHUNK = 32  # problems whose texts are packed together
READER = """\
<h2 id="reader">Responses</h2>
<div class="reader-bar" id="reader-bar">
<label>Task <select id="reader-task"></select></label>
<label>Show <select id="reader-filter"></select></label>
<input type="search" id="reader-search" aria-label="Search in problems, answers and responses" placeholder="Search">
<button type="button" id="reader-back">Back</button><button type="button" id="reader-next">Next</button>
<output id="reader-count" aria-live="polite"></output>
</div>
<div id="reader-list"></div>
"""
Figures = Iterable[tuple[Any, str]]  # each with its caption


def write_report_page(report: Report, path: Path, title: str) -> None:
    """The page of one evaluation: accuracy with intervals, lengths of right and wrong answers, pass@k."""
    tasks = report.summary["tasks"]
    figures = [
        (accuracy_figure(tasks), "Accuracy with 95 % intervals"),
        (length_figure(list(report.results.values())), "Response lengths of right and wrong answers"),
    ]
    if any(task["samples"] > 1 for task in tasks.values()):
        figures.append((pass_figure(tasks), "pass@k: at least one of k samples is right"))
    write_results(path, title, [task_table(report.summary)], notes_of(report.summary), figures, {title: report.results})


def write_results(
    path: Path,
    title: str,
    tables: Iterable[Table],
    notes: Sequence[str],
    figures: Figures,
    results: Mapping[str, Mapping[str, Result]],
) -> Path:
    """Write a page, at its end the reader of each method's results by task; its path."""
    body = "".join(page.table(columns, rows, caption) for caption, columns, rows in tables) + paragraphs(notes)
    body += "".join(page.figure(figure, caption) for figure, caption in figures)
    data, texts = reader_data(results)
    chunks = [page.packed(json.dumps(texts[at : at + CHUNK]), level=6) for at in range(0, len(texts), CHUNK)]
    packed = "".join(f'<script type="text/plain" id="texts-{i}">{chunk}</script>' for i, chunk in enumerate(chunks))
    style, script = (page.static("qsft.evals", name) for name in ("reader.css", "reader.js"))
    return page.write_page(path, page.page(title, body + READER + packed, data=data, style=style, script=script))


def paragraphs(lines: Sequence[str]) -> str:
    return "".join(f'<p class="note">{page.escape(line)}</p>' for line in lines)


def plot(traces: Iterable[Mapping[str, Any]], x: str = "", y: str = "", **layout: Any) -> Any:
    """A figure of scatter traces; x and y name the axes."""
    import plotly.graph_objects as go

    return go.Figure([go.Scatter(**trace) for trace in traces], go.Layout(xaxis_title=x, yaxis_title=y, **layout))


def points_with_intervals(estimates: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The y and error_y of estimates, in per cent."""
    middle = [100 * one["mean"] for one in estimates]
    up = [100 * (one["high"] - one["mean"]) for one in estimates]
    down = [100 * (one["mean"] - one["low"]) for one in estimates]
    return {"y": middle, "error_y": {"type": "data", "array": up, "arrayminus": down}, "marker": {"size": 9}}


def accuracy_figure(tasks: Mapping[str, Any]) -> Any:
    """Accuracy per task as points with 95 % intervals, exact and lenient."""
    traces = [
        {
            "x": list(tasks),
            "name": name,
            "mode": "markers",
            **points_with_intervals([one[key] for one in tasks.values()]),
        }
        for key, name in (("acc", "accuracy"), ("acc_lenient", "lenient"))
    ]
    return plot(traces, y="%", yaxis_rangemode="tozero", scattermode="group")


def length_figure(results: Sequence[Result]) -> Any:
    """Response lengths in tokens of right and wrong answers, binned here so that the page stays small."""
    longest = max(generation.tokens for one in results for generation in one.generations)
    edges = np.linspace(0, longest, BINS + 1)
    middles = ((edges[:-1] + edges[1:]) / 2).round(1).tolist()
    traces = []
    for one, color in zip(results, cycle(page.COLOURS)):
        tokens = np.array([generation.tokens for generation in one.generations])
        right = np.array([bool(grade) for grade in one.grades])
        for name, mask, dash in (("right", right, "solid"), ("wrong", ~right, "dot")):
            if mask.any():
                share = 100 * np.histogram(tokens[mask], edges)[0] / mask.sum()
                line = {"shape": "hvh", "dash": dash, "color": color}
                traces.append({"x": middles, "y": share.round(3).tolist(), "name": f"{one.task}, {name}", "line": line})
    return plot(traces, "tokens", "% of responses")


def pass_figure(tasks: Mapping[str, Any]) -> Any:
    """pass@k over k, unbiased."""
    ladders = {name: {int(k): 100 * share for k, share in task["pass_at"].items()} for name, task in tasks.items()}
    traces = [{"x": list(one), "y": list(one.values()), "name": name} for name, one in ladders.items()]
    ks = sorted({k for one in ladders.values() for k in one})
    return plot(traces, "k", "pass@k, %", xaxis_type="log", xaxis_tickvals=ks)


def reader_data(methods: Mapping[str, Mapping[str, Result]]) -> tuple[dict[str, Any], list[list[list[str]]]]:
    """What reader.js shows of problems that all methods have, and the texts by problem, method and sample."""
    problems: list[dict[str, Any]] = []
    texts: list[list[list[str]]] = []
    first, *others = [{task: _by_problem(result) for task, result in tasks.items()} for tasks in methods.values()]
    for task, answered in first.items():
        asked = {one.id: one for one in next(iter(methods.values()))[task].problems}
        for number, problem in enumerate(answered, start=1):
            runs = [answered[problem], *(other.get(task, {}).get(problem) for other in others)]
            if any(run is None for run in runs):
                continue
            known = asked.get(problem)
            row = {"id": problem, "task": task, "number": number, "at": len(problems)}
            row |= {"question": known and known.question, "gold": known and _gold(known.gold)}
            row |= {"options": dict(known.options) if known and known.options else None}
            problems.append({**row, "runs": [[facts for facts, _ in run] for run in runs if run]})
            texts.append([[text for _, text in run] for run in runs if run])
    return {"methods": list(methods), "problems": problems, "chunk": CHUNK}, texts


def _by_problem(result: Result) -> dict[str, list[tuple[list[Any], str]]]:
    """Of each problem's samples: tokens, cut off, strict, lenient, answer, note; and the text."""
    found: dict[str, list[tuple[list[Any], str]]] = {}
    for one, grade in zip(result.generations, result.grades, strict=True):
        note = "grading timed out" if grade.timed_out else grade.failure
        if grade.choices:
            note = ", ".join(f"{name} {letter or '–'}" for name, letter in grade.choices.items())
        lenient = grade.lenient or grade.correct
        facts = [one.tokens, one.finish == "length", grade.correct, lenient, grade.answer, note]
        found.setdefault(one.problem, []).append((facts, one.text))
    return found


def _gold(gold: object) -> str:
    return ", ".join(map(str, gold)) if isinstance(gold, Sequence) and not isinstance(gold, str) else str(gold)
