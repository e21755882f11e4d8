"""`qsft cache`: build, describe and check a teacher cache."""

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

from qsft.files import shown
from qsft.processes import is_main

EXAMPLES = """\
examples:
  qsft cache build numina_qwen_math_1p5b                    the documents training will see, on this process
  accelerate launch -m qsft cache build recipes/NAME.yaml   ... on all processes
  qsft cache build --dataset_path DATA --teacher Qwen/Qwen2.5-Math-7B-Instruct --out CACHE --encoding compact
  qsft cache info CACHE
  qsft cache verify CACHE --teacher Qwen/Qwen2.5-Math-7B-Instruct --sample 32
"""

CAPTURE_OPTIONS = ("k", "encoding", "top_p", "min_k", "batch_tokens", "dtype", "revision")


def register(commands: Any) -> None:
    parser = commands.add_parser("cache", help="build, describe or check a teacher cache", epilog=EXAMPLES)
    parser.set_defaults(run=lambda args: parser.print_help())
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _register_build(actions)
    info = actions.add_parser("info", help="what a cache holds, who made it, how large it is")
    info.add_argument("directory", metavar="DIR")
    info.set_defaults(run=run_info)
    verify = actions.add_parser(
        "verify", help="check every checksum and bound; with --teacher the values and alignment"
    )
    verify.add_argument("directory", metavar="DIR")
    verify.add_argument(
        "--drop", action="store_true", help="remove damaged files; the next build computes what they held"
    )
    verify.add_argument("--teacher", metavar="MODEL", help="compute sampled documents again and compare")
    verify.add_argument("--revision", help="revision of the teacher on the hub")
    verify.add_argument("--sample", type=int, default=64, metavar="N", help="documents to compute again (default 64)")
    verify.add_argument("--tolerance", type=float, default=0.02, help="largest mean KL at shift 0 (default 0.02 nats)")
    verify.set_defaults(run=run_verify)


def _register_build(actions: Any) -> None:
    build = actions.add_parser(
        "build",
        help="run the teacher over a data set; continues what is there",
        description="Build the cache of RECIPE (its keys may be replaced: --key value), or of a tokenised data set.",
        epilog=EXAMPLES,
    )
    build.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe file or the name of a packaged recipe")
    build.add_argument("--dataset_path", help="input_ids and labels: a save_to_disk directory, .parquet or .jsonl")
    build.add_argument("--teacher", metavar="MODEL", help="path or hub id of a causal LM")
    build.add_argument("--out", metavar="DIR", help="the cache's directory")
    build.add_argument("--tokenizer", help="the tokenizer of the data (default: the teacher's)")
    build.add_argument("--k", type=int, help="slots per label token (default 64)")
    build.add_argument("--encoding", choices=("exact", "compact"), help="389 or 216 bytes per label token at k = 64")
    build.add_argument("--top_p", type=float, help="keep only the slots that hold this share of the mass")
    build.add_argument("--min_k", type=int, help="... but at least this many (default 1)")
    build.add_argument("--batch_tokens", type=int, help="tokens per forward, padding included (default 16384)")
    build.add_argument("--dtype", help="bfloat16, float32, ... (default: the teacher's own)")
    build.add_argument("--revision", help="revision of the teacher on the hub")
    build.set_defaults(run=run_build, takes_overrides=True)


def run_build(args: argparse.Namespace) -> int:
    """Build from a recipe, or from a data set given by options."""
    if args.recipe is not None:
        cache = _build_recipe(args)
    else:
        cache = _build_options(args)
    return run_info(argparse.Namespace(directory=str(cache))) if is_main() else 0


def _build_recipe(args: argparse.Namespace) -> "Path":
    names = ("dataset_path", "teacher", "out", "tokenizer", *CAPTURE_OPTIONS)
    given = [name for name in names if vars(args)[name] is not None and name != "dtype"]
    if given:
        raise ValueError(
            f"--{given[0]} belongs to a build without a recipe. Beside a recipe use its own keys: "
            "--teacher_model_name_or_path, --teacher_cache, --teacher_top_k, ... (`qsft train --keys` lists them)."
        )
    from qsft.recipe.launch import build_recipe_cache
    from qsft.recipe.recipe_file import read_recipe

    dtype = ["--dtype", args.dtype] if args.dtype else []  # a recipe has a key of that name too
    return build_recipe_cache(read_recipe(args.recipe, [*args.overrides, *dtype])).path


def _build_options(args: argparse.Namespace) -> "Path":
    absent = [f"--{name}" for name in ("dataset_path", "teacher", "out") if vars(args)[name] is None]
    if absent or args.overrides:
        problem = f"{', '.join(absent)} not given" if absent else f"unknown words {' '.join(args.overrides)}"
        raise ValueError(f"{problem}. Name a RECIPE, or give --dataset_path, --teacher and --out.")
    from transformers import AutoTokenizer

    from qsft.data.read import load_documents
    from qsft.teacher.capture import build_cache

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer or args.teacher, revision=args.revision)
    options = {name: vars(args)[name] for name in CAPTURE_OPTIONS if vars(args)[name] is not None}
    return build_cache(load_documents(args.dataset_path), args.teacher, args.out, tokenizer=tokenizer, **options).path


def run_info(args: argparse.Namespace) -> int:
    """Print identity and measured facts."""
    from qsft.teacher.cache import TeacherCache

    cache = TeacherCache(args.directory)
    identity, measured = cache.manifest.identity, cache.manifest.measured
    teacher = identity.teacher
    rows = [
        ("teacher", f"{teacher.get('name')}{' @ ' + teacher['revision'] if teacher.get('revision') else ''}"),
        ("computed in", identity.dtype),
        ("vocabulary", f"{identity.vocab_size:,} rows, {identity.tokenizer['tokens']:,} tokens"),
        ("encoding", f"{identity.encoding}, k={identity.k}" + (f", top_p={identity.top_p}" if identity.top_p else "")),
        ("documents", f"{len(cache):,} in {len(cache.shards)} shards"),
        *((name.replace("_", " "), f"{value:,.6g}") for name, value in measured.items() if name != "documents"),
        *((f"made with {name}", version) for name, version in cache.manifest.libraries.items()),
    ]
    print(f"teacher cache {shown(cache.path)}")
    _print_table(rows)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Check the files, and with a teacher the values; 0 when all is well, 1 when not."""
    from pathlib import Path

    from qsft.teacher.verify import verify_cache

    if not Path(args.directory).is_dir():
        raise ValueError(f"there is no directory {args.directory}, so nothing to verify. `qsft cache build` makes one.")
    report = verify_cache(args.directory)
    for why in report.problems.values():
        print(f"- {why}")
    if not report.ok:
        print(f"{len(report.problems)} damaged files in {shown(report.path)}")
        if args.drop:
            print(f"removed them; {report.drop():,} documents are left. Build the cache again for the others.")
        return 1
    print(
        f"{report.documents:,} documents, {report.label_tokens:,} label tokens, {report.bytes / 1e6:,.1f} MB: all sound"
    )
    return _verify_values(args) if args.teacher else 0


def _verify_values(args: argparse.Namespace) -> int:
    from qsft.teacher.cache import TeacherCache
    from qsft.teacher.identity import teacher_difference
    from qsft.teacher.source import TeacherSource
    from qsft.teacher.spot_check import CONFIDENCE, compare_with_teacher, sample_documents

    cache = TeacherCache(args.directory)
    source = TeacherSource(args.teacher, dtype=cache.manifest.identity.dtype, revision=args.revision)
    documents = sample_documents(cache, args.sample)
    check = compare_with_teacher(cache, source.load(), documents)
    difference = teacher_difference(cache.manifest.identity.teacher, source.describe())
    if difference:
        print(f"note: the cache holds the distributions of {difference}")
    print(f"\n{len(documents)} documents of {len(cache.shards)} shards computed again with {args.teacher}:")
    header = ("shift", "KL(cached‖live)", "same top-1", "label tokens")
    rows = ((f"{r.shift:+d}", f"{r.kl:.3g}", f"{r.top1:.1%}", f"{r.label_tokens:,}") for r in check.table)
    _print_table([header, *rows])
    if check.is_aligned(args.tolerance):
        print(
            f"aligned: shift 0 is the teacher. None of the sample differs, so with {CONFIDENCE:.0%} confidence at most "
            f"{check.undetected_share:.1%} of all documents do (--sample N looks closer)"
        )
        return 0
    print(
        f"NOT aligned: the cached rows of {check.differing(args.tolerance)} of {len(documents)} documents are not this "
        "teacher's at shift 0"
    )
    return 1


def _print_table(rows: "Sequence[Sequence[str]]") -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
