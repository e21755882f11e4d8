"""The page of an evaluation: its numbers, accuracy with intervals, lengths of right and wrong answers, pass@k."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from qsft import page
from qsft.evals.reader import page_with_reader
from qsft.evals.summary import COLUMNS, Report, Result, notes_of, table_rows

BINS = 40


def write_report_page(report: Report, path: Path, title: str) -> None:
    """Write the page of one evaluation."""
    tasks = report.summary["tasks"]
    body = page.table(COLUMNS, table_rows(report.summary)) + paragraphs(notes_of(report.summary))
    body += page.figure(accuracy_figure(tasks), "Accuracy with 95 % intervals")
    body += page.figure(length_figure(list(report.results.values())), "Response lengths of right and wrong answers")
    if any(task["samples"] > 1 for task in tasks.values()):
        body += page.figure(pass_figure(tasks), "pass@k: at least one of k samples is right")
    page.write_page(path, page_with_reader(title, body, {title: report.results}))


def paragraphs(lines: Sequence[str]) -> str:
    return "".join(f'<p class="note">{page.escape(line)}</p>' for line in lines)


def accuracy_figure(tasks: Mapping[str, Any]) -> Any:
    """Accuracy per task as points with 95 % intervals, exact and lenient."""
    import plotly.graph_objects as go

    traces = []
    for key, name in (("acc", "accuracy"), ("acc_lenient", "lenient")):
        estimates = [task[key] for task in tasks.values()]
        traces.append(go.Scatter(x=list(tasks), name=name, mode="markers", **points_with_intervals(estimates)))
    return go.Figure(traces, go.Layout(yaxis={"title": "%", "rangemode": "tozero"}, scattermode="group"))


def points_with_intervals(estimates: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The y and error_y of estimates, in per cent."""
    middle = [100 * one["mean"] for one in estimates]
    up = [100 * (one["high"] - one["mean"]) for one in estimates]
    down = [100 * (one["mean"] - one["low"]) for one in estimates]
    return {"y": middle, "error_y": {"type": "data", "array": up, "arrayminus": down}, "marker": {"size": 9}}


def length_figure(results: Sequence[Result]) -> Any:
    """Response lengths in tokens of right and wrong answers, binned here so that the page stays small."""
    import plotly.graph_objects as go

    longest = max(generation.tokens for one in results for generation in one.generations)
    edges = np.linspace(0, longest, BINS + 1)
    traces = []
    for one, color in zip(results, cycle(page.COLOURS)):
        tokens = np.array([generation.tokens for generation in one.generations])
        right = np.array([bool(grade) for grade in one.grades])
        for name, mask in (("right", right), ("wrong", ~right)):
            if mask.any():
                share = 100 * np.histogram(tokens[mask], edges)[0] / mask.sum()
                x = ((edges[:-1] + edges[1:]) / 2).round(1).tolist()
                line = {"shape": "hvh", "dash": "solid" if name == "right" else "dot", "color": color}
                traces.append(go.Scatter(x=x, y=share.round(3).tolist(), name=f"{one.task}, {name}", line=line))
    return go.Figure(traces, go.Layout(xaxis={"title": "tokens"}, yaxis={"title": "% of responses"}))


def pass_figure(tasks: Mapping[str, Any]) -> Any:
    """pass@k over k, unbiased."""
    import plotly.graph_objects as go

    traces = [
        go.Scatter(x=list(map(int, task["pass_at"])), y=[100 * v for v in task["pass_at"].values()], name=name)
        for name, task in tasks.items()
    ]
    ks = sorted({int(k) for task in tasks.values() for k in task["pass_at"]})
    axes = {"xaxis": {"title": "k", "type": "log", "tickvals": ks}, "yaxis": {"title": "pass@k, %"}}
    return go.Figure(traces, go.Layout(**axes))
