"""`qsft plan`: what a recipe needs, before anything is spent."""

import argparse

from qsft.commands import add_recipe

HELP = "documents, cache size, steps, memory per GPU of a recipe"
USAGE = "qsft plan RECIPE [--gpus N] [--gpu_memory GB] [--key value ...]"
DESCRIPTION = (
    "What a recipe needs: documents, cache, steps, and memory per GPU by part and strategy. The model is known by its "
    "config alone. Any key of the recipe can be replaced with --key value."
)
EXAMPLES = """\
examples:
  qsft plan numina_qwen_math_7b --gpus 8 --gpu_memory 80
  qsft plan recipes/m23k_llama_8b.yaml --gpus 64 --per_device_train_batch_size 2
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--gpus", type=int, metavar="N", default=1, help="GPUs over all machines (default: 1)")
    parser.add_argument("--gpu_memory", type=float, metavar="GB", default=80.0, help="of one GPU (default: 80)")


def run(args: argparse.Namespace) -> None:
    from qsft.recipe import stay_offline_without_hub

    stay_offline_without_hub()
    from rich.console import Console

    from qsft.recipe.plan import make_plan, memory_table, plan_lines
    from qsft.recipe.recipe_file import read_recipe

    plan = make_plan(read_recipe(args.recipe, args.overrides), args.gpus)
    table = memory_table(plan, args.gpu_memory)
    for name, value in plan_lines(plan):
        print(f"{name:<18} {value}")
    # Piped output is as wide as the table, not cut at 80 columns.
    Console(width=max(Console().width, 110)).print(table)
