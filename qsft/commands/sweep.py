"""`qsft sweep`: train and evaluate a grid of targets and compare them."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from qsft.commands import add_recipe, check_given, given_options
from qsft.files import shown

HELP = "train, evaluate and compare a grid of targets"
DESCRIPTION = (
    "Train and evaluate several runs, and compare them with the first one. A hyper-parameter is varied for the targets "
    "that have it. `base` is the student before training, which is evaluated once for all sweeps. The paper's numbers "
    "are shown beside the results. A killed sweep continues where it stopped."
)
EXAMPLES = """\
examples:
  # the untrained student, four targets, three values of η
  qsft sweep numina_qwen_math_1p5b \\
    --grid target=base,sft,dft,kd_hybrid,target_sft eta=0.2,0.5,1.0
  # with options of `qsft eval` and of `qsft train`
  qsft sweep recipes/m23k_qwen_1p5b.yaml --grid target=sft,target_sft \\
    --eval "--limit 100" --learning_rate 2e-5
  # only list the runs and what each still needs
  qsft sweep numina_qwen_math_1p5b --grid target=sft,target_sft \\
    --accelerate_config zero3 --dry_run
  # your own model and data
  qsft sweep --model_name_or_path X --teacher Y --dataset_name my.jsonl \\
    --grid target=sft,target_sft
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--grid",
        nargs="+",
        required=True,
        metavar="NAME=V,V",
        help="values to combine: targets (target=…) and hyper-parameters",
    )
    parser.add_argument("--eval", default="", metavar="OPTIONS", help='options of `qsft eval`, quoted: "--limit 100"')
    parser.add_argument("--paper", metavar="RECIPE|FILE", help="published numbers to show (default: those of RECIPE)")
    parser.add_argument(
        "--output_dir", help="directory of the runs (default: sweeps/RECIPE, or sweeps/run without a recipe)"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="move the runs of an earlier sweep aside and start again",
    )
    parser.add_argument("--dry_run", action="store_true", help="print the plan and stop")


def run(args: argparse.Namespace) -> None:
    sweep = make_sweep(args)
    if args.overwrite and not args.dry_run:
        moved_to = sweep.move_aside()
        if moved_to is not None:
            print(f"the earlier runs in {shown(sweep.output_dir)} were moved to {shown(moved_to)}")
    print(sweep.plan())
    if not args.dry_run:
        sweep.execute()


def make_sweep(args: argparse.Namespace) -> Any:
    """Return the sweep that the options describe; a wrong key or option is an error before the first run."""
    from qsft.experiments.sweep import Sweep, expand_grid

    check_given(args.recipe, args.overrides)
    name = "run" if args.recipe is None else Path(args.recipe).stem
    sweep = Sweep(
        recipe=args.recipe,
        runs=expand_grid(args.grid),
        output_dir=Path(args.output_dir or Path("sweeps", name)),
        overrides=args.overrides,
        eval_options=parse_eval_options(args.eval),
        paper=args.paper,
    )
    sweep.check_runs()
    return sweep


def parse_eval_options(text: str) -> dict[str, Any]:
    """Return the options of `qsft eval` in a text by name."""
    from qsft.commands import eval as eval_command

    parser = argparse.ArgumentParser(prog="qsft sweep --eval", add_help=False, allow_abbrev=False, exit_on_error=False)
    eval_command.add_options(parser)
    return given_options(parser, shlex.split(text))
