"""`qsft explore`: pages about targets, tokens, alignment and runs, each one HTML file."""

import argparse
from pathlib import Path
from typing import Any

from qsft.commands import add_recipe, read_given_recipe
from qsft.files import shown, write_json

HELP = "make HTML pages about targets, tokens, alignment and runs"
DESCRIPTION = "Make a page as one HTML file, which works offline."
EXAMPLES = """\
examples:
  # every method with sliders
  qsft explore targets
  # documents of a recipe, token by token
  qsft explore tokens numina_qwen_math_1p5b --num_documents 20
  # sample documents of the cache
  qsft explore tokens --model_name_or_path out --teacher_cache CACHE
  # the same with another target
  qsft explore tokens RECIPE --target kd_hybrid --c 0.5
  # where teacher and student disagree on your data
  qsft explore alignment --model_name_or_path X --teacher Y \\
    --dataset_name my.jsonl
  # training curves in one figure
  qsft explore run out/sft out/target_sft
"""


def add_options(parser: Any) -> None:
    pages = parser.add_subparsers(title="pages", metavar="PAGE")
    _add_page(pages, "targets", "loss, gradient and target Q of every method, with sliders", run_targets)
    tokens = _add_page(pages, "tokens", "documents colored token by token", run_tokens)
    _add_document_options(tokens, num_documents=20)
    alignment_help = "where teacher and student disagree, and whether the teacher is calibrated on your labels"
    alignment = _add_page(pages, "alignment", alignment_help, run_alignment)
    _add_document_options(alignment, num_documents=200)
    alignment.add_argument(
        "--high",
        type=float,
        default=0.5,
        metavar="P",
        help="probability from which a token counts as likely (default: 0.5)",
    )
    curves = _add_page(pages, "run", "training curves of one or several runs", run_run)
    curves.add_argument("directories", nargs="+", metavar="OUTPUT_DIR", help="directory of a training run")


def _add_page(pages: Any, name: str, text: str, run: Any) -> Any:
    parser = pages.add_parser(name, help=text, description=f"Show {text}.", epilog=EXAMPLES)
    parser.add_argument(
        "--output_file", default=f"{name}.html", metavar="FILE", help="page to write (default: %(default)s)"
    )
    parser.set_defaults(run=run)
    return parser


def _add_document_options(parser: Any, num_documents: int) -> None:
    add_recipe(parser)
    parser.add_argument(
        "--num_documents",
        type=int,
        default=num_documents,
        metavar="N",
        help="number of documents, sampled at random (default: %(default)s)",
    )
    parser.add_argument("--draw_seed", type=int, default=0, help="seed of the random sample (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers as JSON to this file")


def run_targets(args: argparse.Namespace) -> None:
    from qsft.explore.target_explorer import targets_page

    print("computing the tables of every target ...", flush=True)
    _write(args, targets_page())


def run_run(args: argparse.Namespace) -> None:
    from qsft.explore.training_curves import read_runs, run_page

    _write(args, run_page(read_runs(args.directories)))


def run_tokens(args: argparse.Namespace) -> None:
    from qsft.explore.token_xray import tokens_page, xray

    inputs = _read_inputs(args)
    data = xray(inputs.model, inputs.tokenizer, inputs.documents, inputs.target, inputs.teacher, n=args.num_documents)
    _write(args, tokens_page(data), data)


def run_alignment(args: argparse.Namespace) -> None:
    from qsft.explore.alignment import comparable_targets, measure_alignment
    from qsft.explore.alignment_report import alignment_page
    from qsft.explore.alignment_summary import in_words

    inputs = _read_inputs(args)
    data = measure_alignment(
        inputs.model,
        inputs.tokenizer,
        inputs.documents,
        inputs.teacher,
        n=args.num_documents,
        targets=comparable_targets(inputs.target),
        high=args.high,
    )
    for sentence in in_words(data):
        print(f"- {sentence}")
    _write(args, alignment_page(data), data)


def _read_inputs(args: argparse.Namespace) -> Any:
    """Return what the options name: a recipe's documents, or without a data set those that a cache keeps."""
    if args.num_documents < 1:
        raise ValueError(f"--num_documents must be at least 1, got {args.num_documents}.")
    recipe = read_given_recipe(args)
    from qsft.recipe.explore_inputs import inputs_of_cache, inputs_of_recipe

    if recipe.values.get("dataset_name") is not None:
        return inputs_of_recipe(recipe, args.num_documents, args.draw_seed)
    cache = recipe.values.get("teacher_cache") or recipe.values.get("teacher")
    if recipe.values.get("model_name_or_path") is None or cache is None:
        raise ValueError(
            "name a RECIPE, or give --model_name_or_path and --dataset_name with --teacher, or --model_name_or_path "
            "and --teacher_cache alone for the documents that the cache keeps."
        )
    return inputs_of_cache(recipe, Path(cache))


def _write(args: argparse.Namespace, text: str, data: Any = None) -> None:
    from qsft.page import write_page

    if data is not None and args.json is not None:
        write_json(Path(args.json), data)
        print(shown(args.json))
    file = write_page(args.output_file, text)
    print(f"{shown(file)}  ({len(text.encode()) / 1e6:.1f} MB; open it in a browser)")
