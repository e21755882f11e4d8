"""`qsft report [DIR …]`: the paper's main table from every evaluated run, settings × methods."""

import argparse
from pathlib import Path

from qsft.files import shown

HELP = "make one table of all evaluated runs, beside the paper's numbers"
DESCRIPTION = (
    "Collect every evaluated run, group the runs by setting, and show averages with intervals beside the published "
    "averages. Missing cells are listed with the command that fills them."
)
EXAMPLES = """\
examples:
  # everything evaluated in runs/, sweeps/ and evals/
  qsft report
  # report.html, report.md, report.tex and report.json
  qsft report runs/ --output_dir paper
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories",
        metavar="DIR",
        nargs="*",
        type=Path,
        help="directories to search (default: runs, sweeps and evals)",
    )
    parser.add_argument(
        "--output_dir", default="report", type=Path, help="where the report is written (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    from qsft.experiments.report import report_runs

    report = report_runs(args.directories)
    page = report.write(args.output_dir)
    print(f"{report}\n{shown(page)}")
