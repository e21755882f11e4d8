"""`qsft explore`: pictures of targets, tokens, alignment and runs, each one HTML file."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qsft.recipe.subject import Subject

EXAMPLES = """\
examples:
  qsft explore targets                                     every target with sliders
  qsft explore tokens numina_qwen_math_1p5b --n 20         documents of a recipe, token by token
  qsft explore tokens --model out --teacher_cache CACHE    documents that the cache keeps, without a data set
  qsft explore tokens RECIPE --target kd_hybrid c=0.5      as another target sees them
  qsft explore alignment numina_qwen_math_1p5b --n 500     correction, noise or agreement? also as JSON
  qsft explore run out/sft out/target                      training curves over each other
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "explore",
        help="pictures as HTML files: targets, tokens, alignment, run curves",
        description="Make a picture: one HTML file that works offline.",
        epilog=EXAMPLES,
    )
    parser.set_defaults(run=lambda args: parser.print_help())
    pictures = parser.add_subparsers(title="pictures", metavar="PICTURE")
    targets = pictures.add_parser("targets", help="every target with sliders: loss, gradient, Q, where training goes")
    targets.add_argument("--out", default="targets.html", metavar="FILE", help="(default: %(default)s)")
    targets.set_defaults(run=run_targets)
    _register_data(pictures, "tokens", 20, "documents coloured token by token", run_tokens)
    says = "where teacher and student disagree, whether labels bear the teacher out, and what that says"
    alignment = _register_data(pictures, "alignment", 200, says, run_alignment)
    alignment.add_argument("--high", type=float, default=0.5, metavar="P", help="likely from P on (default: 0.5)")
    run = pictures.add_parser("run", help="training curves of one or several runs")
    run.add_argument("directories", nargs="+", metavar="OUTPUT_DIR")
    run.add_argument("--out", default="run.html", metavar="FILE", help="(default: %(default)s)")
    run.set_defaults(run=run_run)


def _register_data(pictures: Any, name: str, n: int, words: str, run: Any) -> argparse.ArgumentParser:
    parser = pictures.add_parser(
        name,
        help=words,
        description=f"Show {words}: of a RECIPE (its keys may be replaced: --key value), or of a model and a cache.",
        epilog=EXAMPLES,
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe file or the name of a packaged recipe")
    parser.add_argument("--model", metavar="MODEL", help="the student: a path or hub id (default: the recipe's)")
    parser.add_argument("--teacher_cache", metavar="DIR", help="the teacher's cache (default: the recipe's)")
    parser.add_argument(
        "--target",
        nargs="+",
        default=[],
        metavar=("NAME", "KEY=VALUE"),
        help="the target to look at, such as: target eta=0.2 (default: the recipe's, or target)",
    )
    parser.add_argument("--dataset_path", help="input_ids and labels: a save_to_disk directory, .parquet or .jsonl")
    parser.add_argument("--n", type=int, default=n, help="documents to look at, drawn at random (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: %(default)s)")
    parser.add_argument("--out", default=f"{name}.html", metavar="FILE", help="(default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the numbers as JSON as well")
    parser.set_defaults(run=run, takes_overrides=True)
    return parser  # type: ignore[no-any-return]


def run_targets(args: argparse.Namespace) -> int:
    """Write the target explorer."""
    from qsft.explore.explorer import targets_page

    print("computing the tables of every target, some ten seconds ...", flush=True)
    return _write(args.out, targets_page())


def run_run(args: argparse.Namespace) -> int:
    """Write the curves of the given runs."""
    from qsft.explore.runs import read_runs, run_page

    return _write(args.out, run_page(read_runs(args.directories)))


def run_tokens(args: argparse.Namespace) -> int:
    """Write the token X-ray."""
    from qsft.explore.tokens import tokens_page, xray

    subject = _subject(args)
    data = xray(subject.model, subject.tokenizer, subject.documents, subject.target, subject.teacher, n=args.n)
    _write_json(args.json, data)
    return _write(args.out, tokens_page(data))


def run_alignment(args: argparse.Namespace) -> int:
    """Write the alignment and say in words what it shows."""
    from qsft.explore.alignment import comparable_targets, measure_alignment
    from qsft.explore.heatmap import alignment_page
    from qsft.explore.sentences import in_words

    subject = _subject(args)
    targets = comparable_targets()
    if subject.target.needs <= {"teacher", "reference"} and subject.target not in targets.values():
        targets["yours"] = subject.target
    data = measure_alignment(
        subject.model, subject.tokenizer, subject.documents, subject.teacher, n=args.n, targets=targets, high=args.high
    )
    print("\n".join(f"- {sentence}" for sentence in in_words(data)))
    _write_json(args.json, data)
    return _write(args.out, alignment_page(data))


def _subject(args: argparse.Namespace) -> "Subject":
    from qsft.data.read import load_documents
    from qsft.recipe.subject import subject_of_cache, subject_of_recipe, target_words

    if args.n < 1:
        raise ValueError(f"--n {args.n}: at least one document is needed.")
    words = target_words(args.target)
    if args.recipe is not None:
        given = {"model_name_or_path": args.model, "teacher_cache": args.teacher_cache}
        words += [*args.overrides, *(f"--{name}={value}" for name, value in given.items() if value is not None)]
        return subject_of_recipe(args.recipe, words, args.n, args.seed)
    if args.model is None or args.teacher_cache is None:
        raise ValueError("name a RECIPE, or give --model and --teacher_cache (and --dataset_path for your documents).")
    if args.overrides:
        raise ValueError(f"{args.overrides[0]} is a key of a recipe, but no RECIPE is named.")
    documents = load_documents(args.dataset_path).shuffle(seed=args.seed) if args.dataset_path else None
    return subject_of_cache(args.model, args.teacher_cache, words, documents)


def _write(path: str, text: str) -> int:
    from qsft.files import shown
    from qsft.page import write_page

    print(f"{shown(write_page(path, text))}  ({len(text.encode()) / 1e6:.1f} MB; open it in a browser)")
    return 0


def _write_json(path: str | None, data: "Mapping[str, Any]") -> None:
    from pathlib import Path

    from qsft.files import shown, write_json

    if path is not None:
        write_json(Path(path), data)
        print(shown(path))
