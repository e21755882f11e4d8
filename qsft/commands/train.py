"""`qsft train`: run a recipe, or a training given by options alone."""

import argparse
from typing import TYPE_CHECKING

from qsft.commands import add_recipe, read_given_recipe

if TYPE_CHECKING:
    from qsft.recipe.stopping import StopRequest

HELP = "train a recipe, and build its teacher cache first"
EXAMPLES = """\
examples:
  # check a packaged recipe and print what it would do
  qsft train numina_qwen_math_1p5b --dry_run
  # the same recipe with another target
  qsft train recipes/numina_qwen_math_1p5b.yaml --target sft
  # on eight GPUs with ZeRO-3
  qsft train recipes/m23k_llama_8b.yaml --accelerate_config zero3 \\
    --num_processes 8
  # your own model and data
  qsft train --model_name_or_path Qwen/Qwen3-0.6B \\
    --dataset_name trl-lib/Capybara --target dft --output_dir out
  # a recipe is a program that accelerate launches
  accelerate launch recipes/numina_qwen_math_1p5b.yaml
"""


def description() -> str:
    """Return the help of qsft's own keys; it imports TRL, so it is called only when help is printed."""
    from qsft.recipe.key_help import describe_own_keys

    return (
        "Train a recipe, with any of its keys replaced, or a training that is given by options alone.\n\n"
        f"{describe_own_keys()}\n\n"
        "Every key of TRL's SFTConfig and ModelConfig is an option as well (--learning_rate, --max_length, --use_peft, "
        "...). `qsft train --keys` lists all keys. `qsft train --keys PATTERN` lists those that contain PATTERN."
    )


DESCRIPTION = description


def add_options(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--accelerate_config",
        metavar="NAME|FILE",
        help="run on several processes with accelerate: ddp, fsdp2, zero2, zero3, cpu, or a configuration file. "
        "Options of the launcher, such as --num_processes, can be added",
    )
    parser.add_argument(
        "--keys", nargs="?", const="", metavar="PATTERN", help="list the keys with their defaults and help texts"
    )


def run(args: argparse.Namespace) -> int | None:
    if args.keys is not None:
        from qsft.recipe.keys import list_keys

        print(list_keys(args.keys))
        return None
    from qsft.recipe.stopping import run_until_stopped

    return run_until_stopped(lambda stop: _train(args, stop))


def _train(args: argparse.Namespace, stop: "StopRequest") -> int | None:
    if args.accelerate_config is not None:
        from qsft.recipe.recipe_file import read_recipe
        from qsft.recipe.relaunch import LAUNCHER_OPTIONS, relaunch, split_words

        read_recipe(args.recipe, split_words(args.overrides, LAUNCHER_OPTIONS)[1])  # errors before processes start
        recipe = [args.recipe] if args.recipe is not None else []
        return relaunch(args.accelerate_config, [*recipe, *args.overrides])
    recipe = read_given_recipe(args, has_dry_run=True)
    from qsft.recipe.run import train

    train(recipe, stop)
    return None
