"""Pages that need no network: plotly inlined, light and dark, numbers and plots of a report or a comparison."""

from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle, groupby
from pathlib import Path
from typing import Any

import numpy as np

from qsft.evals.summary import Report, Result
from qsft.jsonl import write_text

BINS = 40
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 68rem;
       margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
"""

# Every plot is drawn with the page's own colours, again when the reader switches between light and dark.
SCRIPT = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const ink = dark.matches ? "#e6edf3" : "#1b1f24", line = dark.matches ? "#30363d" : "#d0d7de";
  for (const [id, figure] of Object.entries(FIGURES)) {
    const clear = "rgba(0,0,0,0)";
    const layout = {...figure.layout, paper_bgcolor: clear, plot_bgcolor: clear, font: {color: ink}, height: 380,
                    margin: {t: 30, r: 20}, modebar: {bgcolor: clear, color: line, activecolor: ink}};
    for (const key of ["xaxis", "yaxis"])
      layout[key] = {...layout[key], gridcolor: line, zerolinecolor: line, linecolor: line};
    Plotly.react(id, figure.data, layout, {responsive: true, displaylogo: false});
  }
}
dark.addEventListener("change", draw);
draw();
"""


def write_report_page(report: Report, path: Path, title: str) -> None:
    """Write the page of one run: accuracy with intervals, response lengths of right and wrong answers, pass@k."""
    tasks = report.summary["tasks"]
    figures = {"Accuracy": accuracy_figure(tasks), "Response length": length_figure(list(report.results.values()))}
    if any(task["samples"] > 1 for task in tasks.values()):
        figures["pass@k"] = pass_figure(tasks)
    write_page(path, title, str(report), figures)


def write_page(path: Path, title: str, markdown: str, figures: Mapping[str, Any]) -> None:
    """Write a self-contained page: a heading, the tables and lists of `markdown`, one plot per figure."""
    import plotly.io
    from plotly.offline import get_plotlyjs

    plots = "".join(f'<h2>{escape(name)}</h2><div id="plot{i}"></div>' for i, name in enumerate(figures))
    # plotly writes < as a unicode escape, so no name can end the script element.
    data = ",".join(f'"plot{i}":{plotly.io.to_json(one, engine="json")}' for i, one in enumerate(figures.values()))
    write_text(
        path,
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>'
        f"<h1>{escape(title)}</h1>{to_html(markdown)}{plots}"
        f"<script>{get_plotlyjs()}</script><script>const FIGURES = {{{data}}};{SCRIPT}</script></html>\n",
    )


def to_html(markdown: str) -> str:
    """The tables, lines and lists that our own reports write, as HTML."""
    blocks = groupby(filter(str.strip, markdown.splitlines()), key=lambda line: line.startswith("|"))
    return "".join(_table(list(lines)) if table else "".join(map(_paragraph, lines)) for table, lines in blocks)


def _paragraph(line: str) -> str:
    return f"<p>{escape(line.removeprefix('- '))}</p>"


def _table(lines: Sequence[str]) -> str:
    heading, _, *rows = ([escape(cell.strip().strip("*")) for cell in line.split("|")[1:-1]] for line in lines)
    cells = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return "<table><tr>" + "".join(f"<th>{cell}</th>" for cell in heading) + f"</tr>{cells}</table>"


def accuracy_figure(tasks: Mapping[str, Any]) -> Any:
    """Accuracy per task as points with 95 % intervals, exact and lenient."""
    import plotly.graph_objects as go

    traces = []
    for key, name in (("acc", "accuracy"), ("acc_lenient", "lenient")):
        estimates = [task[key] for task in tasks.values()]
        traces.append(go.Scatter(x=list(tasks), name=name, mode="markers", **points_with_intervals(estimates)))
    return go.Figure(
        traces, go.Layout(yaxis={"title": "%", "rangemode": "tozero"}, scattermode="group", template="none")
    )


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
    for one, color in zip(results, cycle(COLORS)):
        tokens = np.array([generation.tokens for generation in one.generations])
        right = np.array([bool(grade) for grade in one.grades])
        for name, mask in (("right", right), ("wrong", ~right)):
            if mask.any():
                share = 100 * np.histogram(tokens[mask], edges)[0] / mask.sum()
                x = ((edges[:-1] + edges[1:]) / 2).round(1).tolist()
                line = {"shape": "hvh", "dash": "solid" if name == "right" else "dot", "color": color}
                traces.append(go.Scatter(x=x, y=share.round(3).tolist(), name=f"{one.task}, {name}", line=line))
    axes = {"xaxis": {"title": "tokens"}, "yaxis": {"title": "% of responses"}}
    return go.Figure(traces, go.Layout(**axes, template="none"))


def pass_figure(tasks: Mapping[str, Any]) -> Any:
    """pass@k over k, unbiased."""
    import plotly.graph_objects as go

    traces = [
        go.Scatter(x=list(map(int, task["pass_at"])), y=[100 * v for v in task["pass_at"].values()], name=name)
        for name, task in tasks.items()
    ]
    ks = sorted({int(k) for task in tasks.values() for k in task["pass_at"]})
    axes = {"xaxis": {"title": "k", "type": "log", "tickvals": ks}, "yaxis": {"title": "pass@k, %"}}
    return go.Figure(traces, go.Layout(**axes, template="none"))
