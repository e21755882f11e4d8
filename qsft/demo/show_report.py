"""Show the demo's report: on the terminal, as a page that works offline, and as a picture."""

from pathlib import Path
from typing import Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qsft.demo.report import DemoReport, Sheet
from qsft.files import shown, write_json
from qsft.page import escape, figure, items, page, table, write_page

BAR_WIDTH = 40
STYLES = {"rescue": "green", "filter": "red"}
LEDE = (
    "Clock arithmetic with noisy demonstrations: a small base, a teacher, and one model per choice of target "
    "Q = γ·δ_y + (1−γ)·π̃, trained and measured on this machine."
)


def show_report(report: DemoReport, output_dir: Path, console: Console) -> None:
    """Print a report and write results.json, index.html and accuracy.png to `output_dir`."""
    for sheet in report.sheets:
        console.print("", terminal_table(sheet, report.emphasized), sep="\n")
    console.print("\n[bold]Findings[/bold]")
    for sentence in report.findings:
        console.print(f"  • {sentence}", highlight=False)
    write_json(output_dir / "results.json", report.record)
    write_page(output_dir / "index.html", report_page(report))
    written = ["results.json", "index.html"]
    if write_picture(report.sheets[0].chart, output_dir / "accuracy.png"):
        written.append("accuracy.png")
    else:
        console.print("accuracy.png was left out: it needs matplotlib (pip install 'qsft[demo]').", markup=False)
    console.print("\n[bold]Written[/bold]")
    for name in written:
        console.print(f"  {shown(output_dir)}/{name}", highlight=False)
    console.print("\n[bold]What to run next[/bold]")
    for command, purpose in report.commands:
        console.print(f"  {command}\n      [dim]{purpose}[/dim]", highlight=False, soft_wrap=True)


def terminal_table(sheet: Sheet, emphasized: str | None) -> RenderableType:
    """Return a sheet for the terminal, with bars if its chart has a single series of them."""
    grid = Table(*sheet.columns)
    for column in grid.columns[1:]:
        column.justify = "right" if column.header else "left"
    series = [trace.x for trace in sheet.chart.data if trace.type == "bar"] if sheet.chart is not None else []
    has_bars = len(series) == 1
    if has_bars:
        grid.add_column("")
    for index, row in enumerate(sheet.rows):
        style = "bold" if row[0] == emphasized else STYLES.get(row[-1].split(" ")[0], "")
        cells: list[RenderableType] = [Text(cell) for cell in row]
        if has_bars:
            cells.append(Bar(100, 0, series[0][index], width=BAR_WIDTH, color="cyan"))
        grid.add_row(*cells, style=style)
    return Group(Text(sheet.title, style="bold"), grid, Text(sheet.note, style="dim"))


def report_page(report: DemoReport) -> str:
    """Return a report as HTML."""
    parts = [f"<h2>Findings</h2>{items(report.findings)}"]
    for sheet in report.sheets:
        parts.append(f"<h2>{escape(sheet.heading)}</h2>")
        if sheet.chart is not None:
            parts.append(figure(sheet.chart, f"{sheet.title}. {sheet.note}", height=380))
        parts.append(table(sheet.columns, sheet.rows, sheet.title))
        parts.append(f'<p class="note">{escape(sheet.note)}</p>')
    parts.append("<h2>What to run next</h2>")
    parts.append(table(("command", "what it does"), report.commands))
    return page("The paper's effect on a synthetic task", "".join(parts), lede=LEDE)


def write_picture(chart: Any, path: Path) -> bool:
    """Write a chart of bars or points as a PNG. Return False without matplotlib, which the extra `demo` installs."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    first = chart.data[0]
    picture = Figure(figsize=(7.2, 0.6 + 0.42 * len(first.y)), dpi=160, layout="constrained")
    axes: Any = picture.add_subplot()
    if first.type == "bar":
        _draw_bars(axes, first, chart.data[1:])
        dots = chart.data[1:]
    else:
        dots = chart.data
    for trace in dots:
        axes.plot(
            trace.x,
            trace.y,
            "o",
            color=trace.marker.color,
            markersize=trace.marker.size / 2,
            alpha=trace.marker.opacity,
            label=trace.name if trace.showlegend is None else None,
        )
    if first.type == "scatter":
        axes.legend(frameon=False)
    axes.set(xlim=(0, 108), xlabel=chart.layout.xaxis.title.text)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path)
    return True


def _draw_bars(axes: Any, bars: Any, dots: Any) -> None:
    """Draw bars with their standard errors, and each value to the right of bar, error and dots."""
    errors = bars.error_x.array
    axes.barh(bars.y, bars.x, color=bars.marker.color, xerr=errors, error_kw={"ecolor": "#333333", "capsize": 2})
    for label, value, error in zip(bars.y, bars.x, errors):
        end = value + error
        for trace in dots:
            end = max([end, *(x for x, y in zip(trace.x, trace.y) if y == label)])
        axes.text(end + 1, label, f"{value:.1f}", va="center", fontsize=9)
