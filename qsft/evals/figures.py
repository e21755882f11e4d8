"""The figures of reports and comparisons."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from qsft import page
from qsft.evals.results import Result
from qsft.validation import counted

LENGTH_BINS = 40


def plot(traces: Iterable[Mapping[str, Any]], x: str = "", y: str = "", **layout: Any) -> Any:
    """A Plotly figure of scatter traces with the titles of its axes."""
    import plotly.graph_objects as go

    return go.Figure([go.Scatter(**trace) for trace in traces], go.Layout(xaxis_title=x, yaxis_title=y, **layout))


def points_with_intervals(estimates: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Means in percent as points with 95 % error bars: the arguments of a scatter trace."""
    means = [100 * estimate["mean"] for estimate in estimates]
    above = [100 * (estimate["high"] - estimate["mean"]) for estimate in estimates]
    below = [100 * (estimate["mean"] - estimate["low"]) for estimate in estimates]
    error = {"type": "data", "array": above, "arrayminus": below}
    return {"y": means, "error_y": error, "mode": "markers", "marker": {"size": 9}}


def accuracy_figure(tasks: Mapping[str, Any]) -> Any:
    """Strict and lenient accuracy of each task."""
    strict = {"x": list(tasks), "name": "accuracy", **points_with_intervals([one["acc"] for one in tasks.values()])}
    lenient = {
        "x": list(tasks),
        "name": "lenient",
        **points_with_intervals([one["acc_lenient"] for one in tasks.values()]),
    }
    return plot([strict, lenient], y="%", yaxis_rangemode="tozero", scattermode="group")


def length_histogram(results: Sequence[Result]) -> Any:
    """Response lengths of correct and wrong answers, binned here so that the page stays small."""
    longest = max(generation.tokens for result in results for generation in result.generations)
    edges = np.linspace(0, longest, LENGTH_BINS + 1)
    middles = ((edges[:-1] + edges[1:]) / 2).round(1).tolist()
    traces = []
    for result, color in zip(results, cycle(page.COLORS)):
        tokens = np.array([generation.tokens for generation in result.generations])
        correct = np.array([grade.correct for grade in result.grades])
        for kind, selected, dash in (("correct", correct, "solid"), ("wrong", ~correct, "dot")):
            if selected.any():
                counts, _ = np.histogram(tokens[selected], edges)
                percent = 100 * counts / selected.sum()
                line = {"shape": "hvh", "dash": dash, "color": color}
                name = f"{result.task}, {kind}"
                traces.append({"x": middles, "y": percent.round(3).tolist(), "name": name, "line": line})
    return plot(traces, "tokens", "% of responses")


def pass_figure(tasks: Mapping[str, Any]) -> Any:
    """pass@k of each task over k."""
    by_task = {name: {int(k): 100 * share for k, share in task["pass_at"].items()} for name, task in tasks.items()}
    traces = [{"x": list(shares), "y": list(shares.values()), "name": name} for name, shares in by_task.items()]
    ks = sorted({k for shares in by_task.values() for k in shares})
    return plot(traces, "k", "pass@k, %", xaxis_type="log", xaxis_tickvals=ks)


def difference_figure(tasks: Sequence[str], estimates: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Any:
    """Estimates of several methods on each task, side by side."""
    traces = [
        {"x": tasks, "name": method, **points_with_intervals([cells[task] for task in tasks])}
        for method, cells in estimates.items()
    ]
    return plot(traces, y="points", scattermode="group")


def lengths_and_accuracy_figure(
    lengths: Mapping[str, Mapping[str, float]], accuracy: Mapping[str, Mapping[str, float]]
) -> Any:
    """The paper's figure of response lengths: bars of the mean, error bars p25–p75, the accuracy as a line.

    Args:
        lengths: mean, p25 and p75 in tokens by method.
        accuracy: estimates of the average accuracy by method.
    """
    import plotly.graph_objects as go

    methods = list(lengths)
    means = [lengths[method]["mean"] for method in methods]
    # The mean of a skewed distribution may lie outside of its quartiles; an error bar cannot be negative.
    above = [max(0.0, lengths[method]["p75"] - lengths[method]["mean"]) for method in methods]
    below = [max(0.0, lengths[method]["mean"] - lengths[method]["p25"]) for method in methods]
    bars = go.Bar(
        x=methods,
        y=means,
        name="mean tokens, 25–75 %",
        marker={"color": page.SKY},
        error_y={"type": "data", "array": above, "arrayminus": below, "color": page.GRAY},
    )
    points = points_with_intervals([accuracy[method] for method in methods])
    line = go.Scatter(
        x=methods,
        y=points["y"],
        error_y={**points["error_y"], "color": page.ORANGE},
        name="accuracy, %",
        mode="lines+markers",
        yaxis="y2",
        line={"color": page.ORANGE},
        marker={"color": page.ORANGE, "size": 8},
    )
    right_axis = {
        "title": "accuracy, %",
        "overlaying": "y",
        "side": "right",
        "rangemode": "tozero",
        "showgrid": False,
        "tickmode": "auto",  # Plotly would take the ticks of the left axis, which are no round percentages
    }
    left_axis = {"title": "tokens", "rangemode": "tozero"}
    return go.Figure([bars, line], go.Layout(yaxis=left_axis, yaxis2=right_axis))


def problems_figure(results: Mapping[str, Mapping[str, Result]]) -> Any:
    """Every problem as a point: its share of correct samples in the first run and in another."""
    diagonal = {
        "x": [0, 100],
        "y": [0, 100],
        "mode": "lines",
        "showlegend": False,
        "hoverinfo": "skip",
        "line": {"dash": "dot", "color": page.GRAY},
    }
    traces: list[dict[str, Any]] = [diagonal]
    (baseline, first), *others = results.items()
    for name, run in others:
        pairs: Counter[tuple[float, float]] = Counter()
        for task in first:
            before = first[task].per_problem()
            after = run[task].per_problem()
            shared = [problem for problem in before if problem in after]
            pairs.update((round(100 * before[problem], 2), round(100 * after[problem], 2)) for problem in shared)
        x, y = zip(*pairs, strict=True)
        sizes = [4 + 3 * float(np.sqrt(count)) for count in pairs.values()]
        text = [counted(count, "problem") for count in pairs.values()]
        marker = {"size": sizes, "opacity": 0.6}
        traces.append({"x": x, "y": y, "text": text, "name": name, "mode": "markers", "marker": marker})
    return plot(traces, f"{baseline}, %", "the other, %")
