"""`qsft plan`: what a recipe needs, from metadata alone."""

import argparse

from qsft.commands import add_recipe, read_given_recipe

HELP = "estimate documents, cache size, steps, hours and memory per GPU of a recipe"
DESCRIPTION = (
    "Print the documents, the cache size, the steps and the memory per GPU of a recipe. The memory is listed by part "
    "and strategy. With tokens per second, the hours are printed too. Only metadata is read: the configuration of the "
    "model, the size of the data set, and a few rows of a local data set."
)
EXAMPLES = """\
examples:
  # memory on 8 GPUs of 80 GB
  qsft plan numina_qwen_math_7b --gpus 8 --gpu_memory 80
  # a recipe's file, with another batch size
  qsft plan recipes/m23k_llama_8b.yaml --gpus 64 --per_device_train_batch_size 2
  # hours, from speeds that were measured or assumed
  qsft plan numina_qwen_math_1p5b --train_tokens_per_second 40000 \\
    --capture_tokens_per_second 90000
  # your own model and data
  qsft plan --model_name_or_path Qwen/Qwen3-0.6B --teacher Qwen/Qwen3-4B \\
    --dataset_name my.jsonl
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument("--gpus", type=int, metavar="N", default=1, help="number of GPUs on all machines (default: 1)")
    parser.add_argument("--gpu_memory", type=float, metavar="GB", default=80.0, help="memory of one GPU (default: 80)")
    parser.add_argument(
        "--train_tokens_per_second",
        type=float,
        metavar="N",
        help="tokens per second of training on all GPUs, measured (num_tokens of the log) or assumed; prints the hours "
        "per epoch",
    )
    parser.add_argument(
        "--capture_tokens_per_second",
        type=float,
        metavar="N",
        help="label tokens per second of a capture on all GPUs, as in its progress line; prints the hours of a capture",
    )


def run(args: argparse.Namespace) -> None:
    from qsft.recipe import stay_offline_without_hub

    stay_offline_without_hub()
    from rich.console import Console

    from qsft.recipe.plan import Throughput, make_plan, memory_table, plan_lines

    throughput = Throughput(args.train_tokens_per_second, args.capture_tokens_per_second)
    plan = make_plan(read_given_recipe(args), args.gpus)
    table = memory_table(plan, args.gpu_memory)
    for name, value in plan_lines(plan, throughput):
        print(f"{name:<18} {value}")
    # Piped output is as wide as the table, not cut at 80 columns.
    Console(width=max(Console().width, 120)).print(table)
