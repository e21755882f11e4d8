"""Pages of evaluations: tables and notes, figures, then every problem with what was answered."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from qsft import page
from qsft.evals.reader import page_with_reader
from qsft.evals.summary import Report, Result, Table, notes_of, task_table

BINS = 40
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
    """Write a page with the responses of each method by task at its end; its path."""
    body = "".join(page.table(columns, rows, caption) for caption, columns, rows in tables) + paragraphs(notes)
    body += "".join(page.figure(figure, caption) for figure, caption in figures)
    return page.write_page(path, page_with_reader(title, body, results))


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
