"""`qsft compare RUN_A RUN_B …`: paired differences between evaluations, with intervals."""

import argparse

from qsft.files import shown

HELP = "compare evaluations by paired differences with intervals"
DESCRIPTION = "Compare each run with the first one, problem by problem."
EXAMPLES = """\
examples:
  # directories of trained models, or of their evaluations
  qsft compare runs/sft runs/target_sft
  # base is their student before training
  qsft compare base runs/sft runs/target_sft
  # beside the paper's numbers
  qsft compare runs/numina_qwen_math_1p5b-sft \\
    runs/numina_qwen_math_1p5b-target_sft --paper numina_qwen_math_1p5b
  # beside numbers from a file
  qsft compare runs/sft runs/target_sft --paper published.json

--paper shows published numbers in percent, and the lenient score. The numbers
are those of a recipe of the paper, which are part of qsft, or those of a file.
Averages are recomputed. Each run that a recipe trained is followed by the
published row for its hyper-parameters. A file lists the numbers by task:
  {"rows": {"SFT": {"math500": 61.2, "aime24": 7.5}, "Target-SFT": {…}}}
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", metavar="RUN", nargs="+", help="directory of an evaluation, or of a model that has one")
    parser.add_argument("--paper", metavar="RECIPE|FILE", help="published numbers to show beside the runs")
    parser.add_argument(
        "--output_dir", default="comparison", help="where the table and the page are written (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> None:
    from qsft.evals.compare import compare
    from qsft.experiments.find_evaluations import find_evaluations, find_methods

    runs = find_evaluations(args.runs)
    comparison = compare(list(runs.values()), args.paper, names=list(runs), trained_with=find_methods(runs))
    print(f"{comparison}\n{shown(comparison.write(args.output_dir))}")
