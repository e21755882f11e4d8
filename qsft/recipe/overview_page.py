"""The overview as files: report.json, report.md, report.tex and a page with the paper's first figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qsft import page
from qsft.evals.report_page import paragraphs, points_with_intervals
from qsft.evals.summary import markdown_table, percent, with_interval
from qsft.files import write_json, write_text

TITLE = "Settings and methods"
CAPTION = "Average accuracy, % [95 % interval], and in brackets what the paper prints for the same benchmarks"


def write_overview(summary: Mapping[str, Any], directory: Path) -> Path:
    """Write all four; the page's path."""
    write_json(directory / "report.json", summary)
    write_text(directory / "report.md", to_markdown(summary))
    write_text(directory / "report.tex", to_latex(summary))
    columns, rows = table(summary)
    body = page.table(columns, rows, CAPTION) + paragraphs(notes(summary))
    body += page.figure(figure(summary), "Average accuracy by setting, with 95 % intervals; crosses are published")
    if summary["missing"]:
        body += page.table(["missing, and the command that fills it"], [[line] for line in summary["missing"]])
    return page.write_page(directory / "report.html", page.page(TITLE, body))


def table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Settings × methods, the lenient score below, then wins."""
    methods, rows = summary["methods"], []
    for name, setting in summary["settings"].items():
        rows.append([name, *(_cell(setting, method) for method in methods)])
        cells = [setting["cells"].get(method) for method in methods]
        rows.append(["· lenient", *(percent(cell["lenient"]["mean"]) if cell else "" for cell in cells)])
    for title, key in (("wins", "wins"), ("wins, published", "published_wins")):
        rows.append([title, *(str(summary[key].get(method, 0)) for method in methods)])
    return ["", *methods], rows


def notes(summary: Mapping[str, Any]) -> list[str]:
    tasks = [f"{name}: {', '.join(setting['tasks'])}." for name, setting in summary["settings"].items()]
    return ["Wins: settings in which a method has the highest average.", *tasks, *summary["notes"]]


def to_markdown(summary: Mapping[str, Any]) -> str:
    """The table, the notes, and what is missing."""
    lines = [CAPTION, "", *markdown_table(*table(summary)), "", *(f"- {note}" for note in notes(summary))]
    if summary["missing"]:
        lines += ["", "Missing, and the command that fills it:", "", *(f"    {line}" for line in summary["missing"])]
    return "\n".join([*lines, ""])


def to_latex(summary: Mapping[str, Any]) -> str:
    """A booktabs table; the best of each setting is bold, published values stand in brackets."""
    methods = summary["methods"]
    lines = [f"% {CAPTION}", rf"\begin{{tabular}}{{l{'r' * len(methods)}}}", r"\toprule"]
    lines += [" & ".join(["setting", *map(_tex, methods)]) + r" \\", r"\midrule"]
    for name, setting in summary["settings"].items():
        means = {method: cell["acc"]["mean"] for method, cell in setting["cells"].items()}
        best = max(means, key=lambda method: means[method])
        cells = [_tex_cell(setting, method, bold=method == best and len(means) > 1) for method in methods]
        lines.append(" & ".join([_tex(name), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def figure(summary: Mapping[str, Any]) -> Any:
    """Averages by setting, one colour per method, published values as crosses of the same colour."""
    import plotly.graph_objects as go

    traces, settings = [], summary["settings"]
    for method, colour in zip(summary["methods"], page.COLOURS * len(summary["methods"])):
        have = [name for name, one in settings.items() if method in one["cells"]]
        points = points_with_intervals([settings[name]["cells"][method]["acc"] for name in have])
        marker = {**points.pop("marker"), "color": colour}
        traces.append(go.Scatter(x=have, name=method, mode="markers", marker=marker, **points))
        known = [name for name, one in settings.items() if method in one["published"]]
        printed = [100 * settings[name]["published"][method] for name in known]
        cross = {"symbol": "x-thin", "size": 9, "color": colour, "line": {"width": 2, "color": colour}}
        traces.append(go.Scatter(x=known, y=printed, name=f"{method}, published", mode="markers", marker=cross))
    return go.Figure(traces, go.Layout(yaxis={"title": "%", "rangemode": "tozero"}, scattermode="group"))


def _cell(setting: Mapping[str, Any], method: str) -> str:
    cell, printed = setting["cells"].get(method), setting["published"].get(method)
    beside = f" ({percent(printed)})" if printed is not None else ""
    return f"{with_interval(cell['acc']) if cell else '–'}{beside}"


def _tex_cell(setting: Mapping[str, Any], method: str, *, bold: bool) -> str:
    cell, printed = setting["cells"].get(method), setting["published"].get(method)
    value = "--"
    if cell:
        half = 50 * (cell["acc"]["high"] - cell["acc"]["low"])
        mean = percent(cell["acc"]["mean"])
        shown = rf"\textbf{{{mean}}}" if bold else mean
        value = rf"{shown} {{\scriptsize$\pm${half:.1f}}}"
    return value + (f" ({percent(printed)})" if printed is not None else "")


def _tex(text: str) -> str:
    return text.replace("_", r"\_")
