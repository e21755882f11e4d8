"""`qsft curate METHOD`: turn a data set into another one with a data-level method, ready for any target."""

import argparse

HELP = "rewrite, extend or choose demonstrations: rft, star, grape, self_distill, critical"
USAGE = "qsft curate METHOD [RECIPE] --out DIR [--dataset_name DATA --model MODEL] [--key value ...]"
EXAMPLES = """\
examples:
  qsft curate rft numina_qwen_math_1p5b --out data/numina-rft --num_samples 8
  qsft curate grape --dataset_name mine.jsonl --model Qwen/Qwen2.5-1.5B --columns answer_a,answer_b --out data/grape
  qsft curate star numina_qwen_math_1p5b --rounds 3 --start base --out data/numina-star --learning_rate 1e-5
  qsft curate critical --dataset_name mine.jsonl --model Qwen/Qwen2.5-1.5B --verifier checks:is_right --out critical
  qsft train numina_qwen_math_1p5b --target sft --dataset_name data/numina-rft
  accelerate launch -m qsft curate rft numina_qwen_math_1p5b --out data/numina-rft    shared by several processes
  qsft curate rft --help                                                              a method's settings
"""


def description() -> str:
    from qsft.curate.catalogue import METHODS, summary

    methods = "\n".join(f"  {name:<13} {summary(method)}" for name, method in METHODS.items())
    return (
        f"Turn a data set into another one. A killed run continues where it was.\n\nmethods:\n{methods}\n\n"
        "The data and the model are RECIPE's, with any of its keys replaced, or those given by options."
    )


DESCRIPTION = description  # asked when help is printed: it imports the methods


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", metavar="METHOD", help=argparse.SUPPRESS)
    # A recipe's keys are too many for argparse, and their values must not be taken for the recipe's name.
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="--out DIR", help=argparse.SUPPRESS)
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> None:
    from qsft.curate.catalogue import method_parser

    words = [*args.words, *args.overrides]
    recipe = words.pop(0) if words and not words[0].startswith("-") else None
    given, rest = method_parser(args.method).parse_known_args(words)
    from qsft.recipe.run import curate_recipe

    curate_recipe(args.method, recipe, given, rest)
