"""`qsft sweep`: the paper's main table and ablations as one command."""

import argparse

from qsft.commands import add_recipe

HELP = "train and evaluate a grid of targets, compare them"
USAGE = 'qsft sweep RECIPE --grid NAME=V,V ... [--eval "WORDS"] [--directory DIR] [--dry_run] [--key value ...]'
DESCRIPTION = (
    "Several trainings, an evaluation of each, one comparison with the first. A hyper-parameter is varied for the "
    "targets that take it; `base` is the student untrained, evaluated once for all sweeps. The paper's numbers stand "
    "beside. A killed sweep continues where it was."
)
EXAMPLES = """\
examples:
  qsft sweep numina_qwen_math_1p5b --grid target=base,sft,dft,kd_hybrid,target eta=0.2,0.5,1.0
  qsft sweep recipes/m23k_qwen_1p5b.yaml --grid target=sft,target --eval "--n 4 --limit 100" --learning_rate 2e-5
  qsft sweep numina_qwen_math_1p5b --grid target=sft,target --accelerate_config zero3 --dry_run
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--grid", nargs="+", required=True, metavar="NAME=V,V", help="target=… and hyper-parameters")
    parser.add_argument("--eval", default="", metavar="WORDS", help='options of `qsft eval`, as one word: "--n 4"')
    parser.add_argument("--paper", metavar="RECIPE|FILE", help="published numbers to put beside (default: RECIPE's)")
    parser.add_argument("--directory", help="where the runs go (default: sweeps/RECIPE)")
    parser.add_argument("--dry_run", action="store_true", help="print the plan and stop")


def run(args: argparse.Namespace) -> None:
    from qsft.recipe.sweep_runs import make_sweep

    sweep = make_sweep(args)
    print(sweep.plan())
    if not args.dry_run:
        sweep.execute()
