"""The results in a terminal: tables, bars, findings, and what to run next."""

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qsft.demo.results import Results
from qsft.demo.sheets import SHEETS, Sheet, accuracy
from qsft.demo.xray import FILTER, RESCUE

BAR_WIDTH = 50
STYLES = {RESCUE: "green", FILTER: "red"}


def show(results: Results, findings: list[str], console: Console) -> None:
    """Print everything the run found."""
    for make in SHEETS:
        sheet = make(results)
        console.print()
        console.print(as_table(sheet))
        if make is accuracy:
            console.print(bars(results))
    console.print("\n[bold]What this says[/bold]")
    for finding in findings:
        console.print(f"  • {finding}", highlight=False)


def as_table(sheet: Sheet) -> RenderableType:
    """A table of words for the terminal, its note below."""
    table = Table()
    for column in sheet.columns:
        table.add_column(column, justify="left" if column in (sheet.columns[0], "") else "right")
    for row in sheet.rows:
        style = "bold" if row[0] == sheet.strong else STYLES.get(row[-1].split(" ")[0], "")
        table.add_row(*map(Text, row), style=style)
    return Group(Text(sheet.title, style="bold"), table, Text(sheet.note, style="dim"))


def bars(results: Results) -> RenderableType:
    """Average@n of every model as bars from 0 to 100."""
    controls = {method.label for method in results.methods if method.control}
    grid = Table.grid(padding=(0, 1))
    for label in results.labels:
        line = results.line(label)
        colour = "bright_black" if label in controls else "cyan"
        grid.add_row(Text(label), Bar(100, 0, line.average, width=BAR_WIDTH, color=colour), f"{line.average:5.1f}")
    return Group(Text(f"\nAverage@{results.settings.samples}", style="bold"), grid)
