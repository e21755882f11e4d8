"""`qsft plan`: what a recipe needs, before anything is spent."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qsft.recipe.budget import Plan

EXAMPLES = """\
examples:
  qsft plan numina_qwen_math_7b --gpus 8 --gpu_memory 80
  qsft plan recipes/m23k_llama_8b.yaml --gpus 64 --per_device_train_batch_size 2
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "plan",
        usage="qsft plan RECIPE [--gpus N] [--gpu_memory GB] [--key value ...]",
        help="documents, cache size, steps, memory per GPU of a recipe",
        description="What a recipe needs: documents, cache, steps, and memory per GPU by part and strategy. The model "
        "is known by its config alone. Any key of the recipe can be replaced with --key value.",
        epilog=EXAMPLES,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or the name of a packaged recipe")
    parser.add_argument("--gpus", type=int, metavar="N", default=1, help="GPUs over all machines (default: 1)")
    parser.add_argument(
        "--gpu_memory", type=float, metavar="GB", default=80.0, help="gigabytes of one GPU (default: 80)"
    )
    parser.set_defaults(run=run, takes_overrides=True)


def run(args: argparse.Namespace) -> int:
    """Print the plan."""
    _stay_offline_if_there_is_no_hub()
    from qsft.recipe.budget import lines, make_plan
    from qsft.recipe.recipe_file import read_recipe

    if args.gpus < 1 or args.gpu_memory <= 0:
        raise ValueError(f"--gpus {args.gpus} and --gpu_memory {args.gpu_memory:g} must be positive.")
    plan = make_plan(read_recipe(args.recipe, args.overrides), args.gpus)
    for name, value in lines(plan):
        print(f"{name:<18} {value}")
    _print_memory(plan, args.gpu_memory)
    return 0


def _stay_offline_if_there_is_no_hub() -> None:
    """The hub's libraries would retry for half a minute before the plan is made from what is known without them."""
    import os
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        if not getproxies():
            socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before they are imported


def _print_memory(plan: "Plan", gpu_memory: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from qsft.recipe.budget import size

    table = Table(
        title=f"memory per GPU, {plan.job.processes} GPUs",
        caption="without CUDA's context (0.5-1 GB) and fragmentation",
    )
    for column in ("", "weights", "gradients", "optimiser", "exchange", "activations", "head tile", "total"):
        table.add_column(column, justify="left" if not column else "right", no_wrap=True)
    table.add_column(f"fits {gpu_memory:g} GB")
    for name, memory in plan.memory.items():
        fits = "yes" if memory.total < gpu_memory * 1e9 else "no"
        table.add_row(name, *(size(part) for part in (*vars(memory).values(), memory.total)), fits)
    # Piped output is as wide as the table, not cut at 80 columns.
    Console(width=max(Console().width, 110)).print(table)
