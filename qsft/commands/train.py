"""`qsft train`: run a recipe, or a training given by options alone."""

import argparse

HELP = "train a recipe: data, teacher cache, training"
USAGE = "qsft train [RECIPE] [--accelerate_config NAME] [--key value ...]"
DESCRIPTION = (
    "Train RECIPE (a file, or the name of a packaged recipe) with any of its keys replaced, or a training given by "
    "options alone. --accelerate_config runs it on several processes: ddp, fsdp2, zero3 or a file."
)
EXAMPLES = """\
examples:
  qsft train numina_qwen_math_1p5b --dry_run              what the packaged recipe would do here
  qsft train recipes/numina_qwen_math_1p5b.yaml --target sft
  qsft train recipes/m23k_llama_8b.yaml --accelerate_config zero3 --num_processes 8
  qsft train --model_name_or_path Qwen/Qwen3-0.6B --dataset_name trl-lib/Capybara --target dft --output_dir out
  accelerate launch recipes/numina_qwen_math_1p5b.yaml    the same without this command
  qsft train --keys                                       every key with its help
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    # The keys of three dataclasses are too many for argparse, and `--target sft` must not take `sft` for the recipe.
    parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> int | None:
    words = [*args.overrides, *args.words]
    if "--keys" in words:
        from qsft.recipe.keys import list_keys

        print(list_keys())
        return None
    from qsft.recipe.relaunch import relaunch, split_words

    config, rest = split_words(words, ("accelerate_config",))
    if config:
        return relaunch(config[-1].rpartition("=")[2], rest)
    recipe = rest.pop(0) if rest and not rest[0].startswith("--") else None
    if recipe is None and not rest:
        raise ValueError("nothing to train is given. Name a recipe, or give --model_name_or_path and --dataset_name.")
    from qsft.recipe.recipe_file import read_recipe
    from qsft.recipe.run import train

    train(read_recipe(recipe, rest))
    return None
