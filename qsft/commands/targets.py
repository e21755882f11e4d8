"""`qsft targets`: the table of rows."""

import argparse

HELP = "every published variant as a choice of (γ, π̃)"
DESCRIPTION = "The table of named targets, or one of them in full."
EXAMPLES = """\
examples:
  qsft targets               the table
  qsft targets target        one row with its formula
  qsft targets --markdown    the table as the README has it
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a row, to see it in full")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")


def run(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from qsft.targets import table

    if args.name or args.markdown:
        print(table.describe(args.name) if args.name else table.markdown())
        return
    grid = Table(title="Q = γ·δ_y + (1−γ)·π̃", caption="qsft targets NAME shows one row with its formula")
    for column in table.COLUMNS:
        grid.add_column(column, no_wrap=column == "name")
    for row in table.entries():
        grid.add_row(*(escape(row[column]) for column in table.COLUMNS))  # 1[p_y > τ] is text, not markup
    Console().print(grid)
