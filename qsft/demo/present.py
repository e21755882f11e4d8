"""The report in a terminal, as a page that works offline, and as a picture for slides and READMEs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qsft.demo.sheets import DemoReport, Sheet
from qsft.files import shown, write_json
from qsft.page import COLOURS, GREY, ORANGE, escape, figure, page, table, write_page

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BAR_WIDTH = 40
STYLES = {"rescue": "green", "filter": "red"}
LEDE = (
    "Clock arithmetic with noisy demonstrations: a small base, a teacher, and one model per choice of target "
    "Q = γ·δ_y + (1−γ)·π̃, trained and measured on this machine."
)


def present(report: DemoReport, out: Path, console: Console) -> None:
    """Show a report and leave it in `out`: results.json, index.html, accuracy.png."""
    for sheet in report.sheets:
        console.print("", as_table(sheet), sep="\n")
    console.print("\n[bold]What this says[/bold]")
    for sentence in report.findings:
        console.print(f"  • {sentence}", highlight=False)
    write_json(out / "results.json", report.record)
    write_page(out / "index.html", webpage(report))
    console.print(f"\n[bold]Written[/bold]\n  {shown(out)}/results.json\n  {shown(out)}/index.html", highlight=False)
    if write_picture(report.sheets[0], out / "accuracy.png"):
        console.print(f"  {shown(out)}/accuracy.png", highlight=False)
    else:
        console.print("accuracy.png was left out: it needs matplotlib (pip install 'qsft[demo]').", markup=False)
    console.print("\n[bold]What to run next[/bold]")
    for command, what in report.commands:
        console.print(f"  {command}\n      [dim]{what}[/dim]", highlight=False, soft_wrap=True)


def as_table(sheet: Sheet) -> RenderableType:
    """A sheet for the terminal, with bars of its only series and its note below."""
    grid = Table(*sheet.columns)
    for column in grid.columns[1:]:
        column.justify = "right" if column.header else "left"
    values = next(iter(sheet.chart.series.values())) if sheet.chart and len(sheet.chart.series) == 1 else []
    if values:
        grid.add_column("")
    for i, row in enumerate(sheet.rows):
        style = "bold" if row[0] == sheet.strong else STYLES.get(row[-1].split(" ")[0], "")
        bar = [Bar(100, 0, values[i], width=BAR_WIDTH, color="cyan")] if values else []
        grid.add_row(*map(Text, row), *bar, style=style)
    return Group(Text(sheet.title, style="bold"), grid, Text(sheet.note, style="dim"))


def webpage(report: DemoReport) -> str:
    """The report as HTML."""
    body = ["<h2>What this says</h2><ul>", *(f"<li>{escape(sentence)}</li>" for sentence in report.findings), "</ul>"]
    for sheet in report.sheets:
        body.append(f"<h2>{escape(sheet.heading)}</h2>")
        if sheet.chart is not None:
            body.append(figure(as_figure(sheet), f"{sheet.title}. {sheet.note}", height=380))
        body.append(table(sheet.columns, sheet.rows, sheet.title) + f'<p class="note">{escape(sheet.note)}</p>')
    body += ["<h2>What to run next</h2>", table(("command", "what it does"), report.commands)]
    return page("The paper's effect in a small world", "\n".join(body), lede=LEDE)


def as_figure(sheet: Sheet) -> "Figure":
    """A sheet's chart: bars with their errors, stacked bars or points, and a small dot for every seed."""
    import plotly.graph_objects as go

    chart, labels = sheet.chart, [row[0] for row in sheet.rows]
    assert chart is not None
    fig, alone = go.Figure(), len(chart.series) == 1
    for colour, (name, values) in zip(COLOURS, chart.series.items()):
        hover = f"%{{y}}, {name}: %{{x:.1f}} %<extra></extra>"
        series: dict[str, Any] = {"name": name, "x": values, "y": labels, "hovertemplate": hover}
        if alone:
            series["error_x"] = {"type": "data", "array": chart.errors, "color": GREY}
            series |= {"text": [f"{value:.1f}" for value in values], "textposition": "inside"}
        if chart.points:
            fig.add_scatter(**series, mode="markers", marker={"color": colour, "size": 13})
        else:
            marker = {"color": chart.colours or colour}
            fig.add_bar(**series, marker=marker, orientation="h", insidetextanchor="start")
        if name in chart.dots:
            x, y = zip(*chart.dots[name])
            small = {"color": ORANGE if alone else colour, "size": 6, "opacity": 0.6}
            fig.add_scatter(x=x, y=y, mode="markers", name="one seed", marker=small, showlegend=alone)
    axes = {"xaxis": {"title": {"text": chart.unit}, "rangemode": "tozero"}, "yaxis": {"autorange": "reversed"}}
    fig.update_layout(**axes, barmode="stack", legend={"traceorder": "normal"}, showlegend=len(fig.data) > 1)
    return fig


def write_picture(sheet: Sheet, path: Path) -> bool:
    """Write a sheet's bars or points as a PNG; False without matplotlib, which comes with the extra `demo`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    chart, labels = sheet.chart, [row[0] for row in sheet.rows]
    assert chart is not None
    picture = Figure(figsize=(7.2, 0.6 + 0.42 * len(labels)), dpi=160, layout="constrained")
    axes: Any = picture.add_subplot()
    for colour, (name, values) in zip(COLOURS, chart.series.items()):
        dots = chart.dots.get(name, [])
        if chart.points:
            axes.plot(values, labels, "o", color=colour, label=name)
            axes.legend(frameon=False)
        else:
            whiskers = {"xerr": chart.errors, "error_kw": {"ecolor": "#333333", "capsize": 2}}
            axes.barh(labels, values, color=chart.colours, **whiskers)
            for label, value, error in zip(labels, values, chart.errors):
                end = max([value + error, *(x for x, of in dots if of == label)])
                axes.text(end + 1, label, f"{value:.1f}", va="center", fontsize=9)
        small = colour if chart.points else ORANGE
        axes.plot([x for x, _ in dots], [label for _, label in dots], "o", color=small, markersize=3, alpha=0.6)
    axes.set(xlim=(0, 108), xlabel=chart.unit)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path)
    return True
