"""The report in a terminal, as a page that works offline, and as a picture for slides and READMEs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qsft.demo.demonstration import FILTER, RESCUE
from qsft.demo.findings import findings
from qsft.demo.results import Results
from qsft.demo.sheets import Chart, Sheet, next_steps, sheets
from qsft.files import shown, write_json
from qsft.page import BLUE, COLOURS, GREY, ORANGE, SKY, escape, figure, page, table, write_page

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BAR_WIDTH = 40
STYLES = {RESCUE: "green", FILTER: "red"}
LEDE = (
    "Clock arithmetic with noisy demonstrations: a small base, a teacher, and one model per choice of target "
    "Q = γ·δ_y + (1−γ)·π̃, trained and measured on this machine."
)


def present(results: Results, out: Path, console: Console) -> None:
    """Show the results and leave them in `out`: results.json, index.html, accuracy.png."""
    said = findings(results)
    show(sheets(results), said, next_steps(results), results.record(said), out, console)


def show(
    tables: Sequence[Sheet],
    said: Sequence[str],
    commands: Sequence[tuple[str, str]],
    record: Mapping[str, Any],
    out: Path,
    console: Console,
) -> None:
    """Print a report and leave it in `out`, its first sheet as a picture too."""
    for sheet in tables:
        console.print("", as_table(sheet), sep="\n")
    console.print("\n[bold]What this says[/bold]")
    for sentence in said:
        console.print(f"  • {sentence}", highlight=False)
    write_json(out / "results.json", record)
    write_page(out / "index.html", webpage(tables, said, commands))
    console.print(f"\n[bold]Written[/bold]\n  {shown(out)}/results.json\n  {shown(out)}/index.html", highlight=False)
    if write_picture(tables[0], out / "accuracy.png"):
        console.print(f"  {shown(out)}/accuracy.png", highlight=False)
    else:
        console.print("accuracy.png was left out: it needs matplotlib (pip install 'qsft[demo]').", markup=False)
    console.print("\n[bold]What to run next[/bold]")
    for command, what in commands:
        console.print(f"  {command}\n      [dim]{what}[/dim]", highlight=False, soft_wrap=True)


def as_table(sheet: Sheet) -> RenderableType:
    """A sheet for the terminal, with bars of its first series and its note below."""
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


def webpage(tables: Sequence[Sheet], said: Sequence[str], commands: Sequence[tuple[str, str]]) -> str:
    """The report as HTML; `commands` are (what to type, what it does)."""
    body = ["<h2>What this says</h2><ul>", *(f"<li>{escape(sentence)}</li>" for sentence in said), "</ul>"]
    for sheet in tables:
        body.append(f"<h2>{escape(sheet.heading)}</h2>")
        if sheet.chart is not None:
            body.append(figure(as_figure(sheet), f"{sheet.title}. {sheet.note}", height=380))
        body.append(table(sheet.columns, sheet.rows, sheet.title) + f'<p class="note">{escape(sheet.note)}</p>')
    body += ["<h2>What to run next</h2>", table(("command", "what it does"), commands)]
    return page("The paper's effect in a small world", "\n".join(body), lede=LEDE)


def as_figure(sheet: Sheet) -> "Figure":
    """A sheet's chart: bars with their errors, stacked bars or points, and a small dot for every seed."""
    import plotly.graph_objects as go

    chart, labels = sheet.chart, [row[0] for row in sheet.rows]
    assert chart is not None
    single = len(chart.series) == 1
    fig = go.Figure(layout={"barmode": "stack", "xaxis": {"title": {"text": chart.unit}, "rangemode": "tozero"}})
    for colour, (name, values) in zip(COLOURS, chart.series.items()):
        hover = f"%{{y}}, {name}: %{{x:.1f}} %<extra></extra>"
        if chart.stacked:
            fig.add_bar(
                name=name,
                x=values,
                y=labels,
                orientation="h",
                marker={"color": colours(chart, labels) if single else colour},
                error_x={"type": "data", "array": chart.errors, "color": GREY} if chart.errors else None,
                text=[f"{value:.1f}" for value in values] if single else None,
                textposition="inside",
                insidetextanchor="start",
                hovertemplate=hover,
            )
        else:
            fig.add_scatter(
                name=name, x=values, y=labels, mode="markers", marker={"color": colour, "size": 13}, hovertemplate=hover
            )
        if name in chart.dots:
            points = [(x, label) for label, seeds in zip(labels, chart.dots[name]) for x in seeds]
            small = {"color": ORANGE if single else colour, "size": 6, "opacity": 0.6}
            fig.add_scatter(
                x=[x for x, _ in points],
                y=[label for _, label in points],
                mode="markers",
                name="one seed",
                marker=small,
                showlegend=single,
            )
    fig.update_layout(yaxis={"autorange": "reversed"}, legend={"traceorder": "normal"}, showlegend=len(fig.data) > 1)
    return fig


def colours(chart: Chart, labels: Sequence[str]) -> list[str]:
    """Methods, controls, and the models they are compared with."""
    return [GREY if label in chart.controls else BLUE if label in chart.methods else SKY for label in labels]


def write_picture(sheet: Sheet, path: Path) -> bool:
    """Write the bars of a sheet as a PNG; False without matplotlib, which comes with the extra `demo`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    chart, labels = sheet.chart, [row[0] for row in sheet.rows]
    assert chart is not None
    places = range(len(labels))
    picture = Figure(figsize=(7.2, 0.6 + 0.42 * len(labels)), dpi=160, layout="constrained")
    axes: Any = picture.add_subplot()
    for colour, (name, values) in zip(COLOURS, chart.series.items()):
        seeds = chart.dots.get(name, [[] for _ in labels])
        if len(chart.series) == 1:
            whiskers = {"xerr": chart.errors, "error_kw": {"ecolor": "#333333", "capsize": 2}}
            axes.barh(places, values, color=colours(chart, labels), **whiskers)
            for place, value, error, dots in zip(places, values, chart.errors, seeds):
                axes.text(max([value + error, *dots]) + 1, place, f"{value:.1f}", va="center", fontsize=9)
        else:
            axes.plot(values, places, "o", color=colour, label=name)
        flat = [(x, place) for place, dots in zip(places, seeds) for x in dots]
        small = ORANGE if len(chart.series) == 1 else colour
        axes.plot([x for x, _ in flat], [place for _, place in flat], "o", color=small, markersize=3, alpha=0.6)
    if len(chart.series) > 1:
        axes.legend(frameon=False)
    axes.set(xlim=(0, 108), xlabel=chart.unit, yticks=places, yticklabels=labels)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path)
    return True
