"""`qsft explore`: pictures of targets, tokens, alignment and runs, each one HTML file."""

import argparse
from pathlib import Path
from typing import Any

from qsft.commands import add_recipe
from qsft.files import shown, write_json

HELP = "pictures as HTML files: targets, tokens, alignment, run curves"
DESCRIPTION = "Make a picture: one HTML file that works offline."
EXAMPLES = """\
examples:
  qsft explore targets                                     every target with sliders
  qsft explore tokens numina_qwen_math_1p5b --n 20         documents of a recipe, token by token
  qsft explore tokens --model out --teacher_cache CACHE    documents that the cache keeps, without a data set
  qsft explore tokens RECIPE --target kd_hybrid c=0.5      as another target sees them
  qsft explore alignment numina_qwen_math_1p5b --n 500     correction, noise or agreement? also as JSON
  qsft explore run out/sft out/target                      training curves over each other
"""


def add_options(parser: Any) -> None:
    pictures = parser.add_subparsers(title="pictures", metavar="PICTURE")

    def picture(name: str, words: str, run: Any, **more: Any) -> Any:
        one = pictures.add_parser(name, help=words, **more)
        one.add_argument("--out", default=f"{name}.html", metavar="FILE", help="(default: %(default)s)")
        one.set_defaults(run=run)
        return one

    picture("targets", "every target with sliders: loss, gradient, Q, where training goes", run_targets)
    seen = "documents coloured token by token"
    apart = "where teacher and student disagree, whether labels bear the teacher out, and what that says"
    of = "of a RECIPE (its keys may be replaced: --key value), or of a model and a cache."
    for name, n, words, run in (("tokens", 20, seen, run_tokens), ("alignment", 200, apart, run_alignment)):
        one = picture(name, words, run, description=f"Show {words}: {of}", epilog=EXAMPLES)
        add_recipe(one, nargs="?")
        one.add_argument("--model", metavar="MODEL", help="the student: a path or hub id (default: the recipe's)")
        one.add_argument("--teacher_cache", metavar="DIR", help="the teacher's cache (default: the recipe's)")
        words = "the target to look at, such as: target eta=0.2 (default: the recipe's, or target)"
        one.add_argument("--target", nargs="+", default=[], metavar=("NAME", "KEY=VALUE"), help=words)
        one.add_argument("--dataset_path", help="input_ids and labels: a save_to_disk directory, .parquet or .jsonl")
        one.add_argument("--n", type=int, default=n, help="documents, drawn at random (default: %(default)s)")
        one.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
        one.add_argument("--json", metavar="FILE", help="write the numbers as JSON as well")
    one.add_argument("--high", type=float, default=0.5, metavar="P", help="likely from P on (default: 0.5)")
    curves = picture("run", "training curves of one or several runs", run_run)
    curves.add_argument("directories", nargs="+", metavar="OUTPUT_DIR")


def run_targets(args: argparse.Namespace) -> None:
    from qsft.explore.explorer import targets_page

    print("computing the tables of every target, some ten seconds ...", flush=True)
    _write(args, targets_page())


def run_run(args: argparse.Namespace) -> None:
    from qsft.explore.runs import read_runs, run_page

    _write(args, run_page(read_runs(args.directories)))


def run_tokens(args: argparse.Namespace) -> None:
    from qsft.explore.tokens import tokens_page, xray
    from qsft.recipe.explore_inputs import read_explore_inputs

    model, tokenizer, documents, target, teacher = read_explore_inputs(args)
    data = xray(model, tokenizer, documents, target, teacher, n=args.n)
    _write(args, tokens_page(data), data)


def run_alignment(args: argparse.Namespace) -> None:
    from qsft.explore.alignment import comparable_targets, in_words, measure_alignment
    from qsft.explore.heatmap import alignment_page
    from qsft.recipe.explore_inputs import read_explore_inputs

    model, tokenizer, documents, target, teacher = read_explore_inputs(args)
    targets = comparable_targets(target)
    data = measure_alignment(model, tokenizer, documents, teacher, n=args.n, targets=targets, high=args.high)
    print("\n".join(f"- {sentence}" for sentence in in_words(data)))
    _write(args, alignment_page(data), data)


def _write(args: argparse.Namespace, text: str, data: Any = None) -> None:
    from qsft.page import write_page

    if data is not None and args.json is not None:
        write_json(Path(args.json), data)
        print(shown(args.json))
    print(f"{shown(write_page(args.out, text))}  ({len(text.encode()) / 1e6:.1f} MB; open it in a browser)")
