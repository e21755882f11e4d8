"""What an evaluation found, for people: Markdown, and a page of tables, figures and every problem with its responses.

Numbers of all responses are in the page's data; the texts are packed in chunks that the page unpacks when they are
read, so that a file with 24,000 responses opens at once.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from qsft import page
from qsft.evals.stats import Result, macro_average, task_numbers
from qsft.files import shown, write_json, write_text

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
Table = tuple[str, Sequence[str], list[list[str]]]  # title, columns, rows
COLUMNS = (
    "task", "N", "n", "accuracy [95 %]", "± s.e.", "lenient", "runs ±", "pass@n", "maj@n", "no answer", "cut off",
    "tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Findings(ABC):
    """Numbers, and the results they are made of; `summary` is what the JSON file holds, str() the Markdown file."""

    summary: dict[str, Any]
    results: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @abstractmethod
    def tables(self) -> list[Table]: ...

    @abstractmethod
    def notes(self) -> list[str]: ...

    @abstractmethod
    def figures(self) -> list[tuple[Any, str]]: ...  # with their captions

    def __str__(self) -> str:
        return to_markdown(self.tables(), self.notes())

    def write_files(self, stem: Path, page_file: Path, title: str, methods: Mapping[str, Mapping[str, Result]]) -> Path:
        """Write stem.json, stem.md and the page, at its end the reader of each method's results by task; its path."""
        write_json(stem.with_suffix(".json"), self.summary)
        write_text(stem.with_suffix(".md"), str(self))
        body = "".join(page.table(columns, rows, caption) for caption, columns, rows in self.tables())
        body += paragraphs(self.notes()) + "".join(page.figure(*one) for one in self.figures())
        data, texts = reader_data(methods)
        chunks = [page.packed(json.dumps(texts[at : at + CHUNK]), level=6) for at in range(0, len(texts), CHUNK)]
        packed = "".join(f'<script type="text/plain" id="texts-{i}">{chunk}</script>' for i, chunk in enumerate(chunks))
        style, script = (page.static("qsft.evals", name) for name in ("reader.css", "reader.js"))
        return page.write_page(
            page_file, page.page(title, body + READER + packed, data=data, style=style, script=script)
        )


@dataclass(frozen=True)
class Report(Findings):
    """What an evaluation found; results by task."""

    def accuracy(self, task: str) -> float:
        """The exact mean over problems of the mean over samples."""
        return float(self.summary["tasks"][task]["acc"]["mean"])

    def tables(self) -> list[Table]:
        rows = [
            [
                name, str(task["problems"]), str(task["samples"]), with_interval(task["acc"]),
                percent(task["acc"]["se"], 2), percent(task["acc_lenient"]["mean"]), percent(task["runs"]["std"], 2),
                percent(task["pass_at"][str(task["samples"])]), percent(task["majority"]), percent(task["no_answer"]),
                percent(task["truncated"]), f"{task['tokens']['mean']:.0f}",
            ]
            for name, task in self.summary["tasks"].items()
        ]  # fmt: skip
        strict, lenient = self.summary["macro"]["acc"], self.summary["macro"]["acc_lenient"]
        average = [with_interval(strict), percent(strict["se"], 2), percent(lenient["mean"])]
        return [("", COLUMNS, [*rows, ["macro", "", "", *average, *[""] * 6]])]

    def notes(self) -> list[str]:
        notes = [note for task in self.summary["tasks"].values() for note in task["notes"]]
        notes += [f"{task} is left out: {why}." for task, why in self.summary.get("left_out", {}).items()]
        return list(dict.fromkeys(notes))  # each once

    def figures(self) -> list[tuple[Any, str]]:
        tasks = self.summary["tasks"]
        figures = [
            (accuracy_figure(tasks), "Accuracy with 95 % intervals"),
            (length_figure(list(self.results.values())), "Response lengths of right and wrong answers"),
        ]
        if any(task["samples"] > 1 for task in tasks.values()):
            figures.append((pass_figure(tasks), "pass@k: at least one of k samples is right"))
        return figures

    def write(self, directory: Path) -> Path:
        title = f"Evaluation of {shown(self.summary['settings']['model'])}"
        return self.write_files(directory / "summary", directory / "report.html", title, {title: self.results})


def make_report(
    results: Sequence[Result], settings: Mapping[str, Any], notes: Mapping[str, list[str]], left_out: Mapping[str, str]
) -> Report:
    tasks = {one.task: {**task_numbers(one), "notes": notes.get(one.task, [])} for one in results}
    macro = {}
    for name, lenient in (("acc", False), ("acc_lenient", True)):
        shares = [np.array([*one.per_problem(lenient=lenient).values()]) for one in results]
        macro[name] = asdict(macro_average(shares))
    summary = {"tasks": tasks, "macro": macro, "settings": dict(settings), "left_out": dict(left_out)}
    return Report(summary, {one.task: one for one in results})


def to_markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    lines: list[str] = []
    for title, columns, rows in tables:
        head, *body = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
        rule = "|---" + "|---:" * (len(columns) - 1) + "|"  # numbers to the right
        lines += [*([title, ""] if title else []), head, rule, *body, ""]
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def with_interval(estimate: Mapping[str, float]) -> str:
    return f"{percent(estimate['mean'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"


def percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None or share != share else f"{100 * share:.{digits}f}"


def paragraphs(lines: Sequence[str]) -> str:
    return "".join(f'<p class="note">{page.escape(line)}</p>' for line in lines)


def plot(traces: Iterable[Mapping[str, Any]], x: str = "", y: str = "", **layout: Any) -> Any:
    import plotly.graph_objects as go

    return go.Figure([go.Scatter(**trace) for trace in traces], go.Layout(xaxis_title=x, yaxis_title=y, **layout))


def points_with_intervals(estimates: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    middle = [100 * one["mean"] for one in estimates]
    up = [100 * (one["high"] - one["mean"]) for one in estimates]
    down = [100 * (one["mean"] - one["low"]) for one in estimates]
    error = {"type": "data", "array": up, "arrayminus": down}
    return {"y": middle, "error_y": error, "mode": "markers", "marker": {"size": 9}}


def accuracy_figure(tasks: Mapping[str, Any]) -> Any:
    traces = [
        {"x": list(tasks), "name": name, **points_with_intervals([one[key] for one in tasks.values()])}
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
            gold = known and ", ".join(map(str, known.gold if isinstance(known.gold, list | tuple) else [known.gold]))
            row |= {"question": known and known.question, "gold": gold}
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
