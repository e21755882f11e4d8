"""`qsft cache`: build, describe and check a teacher cache."""

import argparse
from typing import Any

from qsft.commands import add_recipe, read_given_recipe
from qsft.processes import is_main

HELP = "build, describe or check a teacher cache"
DESCRIPTION = "Build, describe or check a teacher cache."
EXAMPLES = """\
examples:
  qsft cache build numina_qwen_math_1p5b                    the documents training will see, on this process
  accelerate launch -m qsft cache build recipes/NAME.yaml   ... on all processes
  qsft cache build --dataset_path DATA --teacher Qwen/Qwen2.5-Math-7B-Instruct --output_dir CACHE
  qsft cache info CACHE
  qsft cache verify CACHE --teacher Qwen/Qwen2.5-Math-7B-Instruct --sample 32
"""

# Of a build without a recipe; the first three must be given.
BUILD: dict[str, dict[str, Any]] = {
    "dataset_path": {"help": "input_ids and labels: a save_to_disk directory, .parquet or .jsonl"},
    "teacher": {"metavar": "MODEL", "help": "path or hub id of a causal LM"},
    "output_dir": {"metavar": "DIR", "help": "the cache's directory"},
    "tokenizer": {"help": "the tokenizer of the data (default: the teacher's)"},
    "top_k": {"type": int, "help": "slots per label token (default 64)"},
    "cache_encoding": {"choices": ("exact", "compact"), "help": "389 or 216 bytes per label token at k = 64"},
    "top_p": {"type": float, "help": "keep only the slots that hold this share of the mass"},
    "min_k": {"type": int, "help": "... but at least this many (default 1)"},
    "batch_tokens": {"type": int, "help": "tokens per forward, padding included (default 16384)"},
    "dtype": {"help": "bfloat16, float32, ... (default: the teacher's own)"},
    "revision": {"help": "revision of the teacher on the hub"},
}


def add_options(parser: Any) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    words = "run the teacher over a data set; continues what is there"
    about = "Build the cache of RECIPE (its keys may be replaced: --key value), or of a tokenised data set."
    build = actions.add_parser("build", help=words, description=about, epilog=EXAMPLES)
    add_recipe(build)
    for name, how in BUILD.items():
        build.add_argument(f"--{name}", **how)
    build.set_defaults(run=run_build)
    info = actions.add_parser("info", help="what a cache holds, who made it, how large it is")
    info.set_defaults(run=run_info)
    words = "check every checksum and bound; with --teacher the values and alignment"
    verify = actions.add_parser("verify", help=words)
    for action in (info, verify):
        action.add_argument("directory", metavar="DIR")
    words = "remove damaged files; the next build computes what they held"
    verify.add_argument("--drop", action="store_true", help=words)
    verify.add_argument("--teacher", metavar="MODEL", help="compute sampled documents again and compare")
    verify.add_argument("--revision", help="revision of the teacher on the hub")
    verify.add_argument("--sample", type=int, default=64, metavar="N", help="documents to compute again (default 64)")
    verify.add_argument("--tolerance", type=float, default=0.02, help="largest mean KL at shift 0 (default 0.02 nats)")
    verify.set_defaults(run=run_verify)


def run_build(args: argparse.Namespace) -> None:
    given = {name: vars(args)[name] for name in BUILD if vars(args)[name] is not None}
    if args.recipe is None and not args.overrides:
        args.directory = _build_options(args, given)
    else:
        args.directory = _build_recipe(args, given)
    if is_main():
        run_info(args)


def _build_recipe(args: argparse.Namespace, given: dict[str, Any]) -> Any:
    shared = ("teacher", "dtype")  # keys of a recipe as well
    overrides = [word for name in shared if name in given for word in (f"--{name}", str(given.pop(name)))]
    if given:
        raise ValueError(
            f"--{next(iter(given))} belongs to a build without a recipe. Beside a recipe use its own keys: "
            "--teacher_model_name_or_path, --teacher_cache, --teacher_top_k, ... (`qsft train --keys` lists them)."
        )
    recipe = read_given_recipe(args, overrides)
    from qsft.recipe.run import build_recipe_cache

    return build_recipe_cache(recipe).path


def _build_options(args: argparse.Namespace, given: dict[str, Any]) -> Any:
    absent = [f"--{name}" for name in list(BUILD)[:3] if name not in given]
    if absent or args.overrides:
        problem = f"{', '.join(absent)} not given" if absent else f"unknown words {' '.join(args.overrides)}"
        raise ValueError(f"{problem}. Name a RECIPE, or give --dataset_path, --teacher and --output_dir.")
    from transformers import AutoTokenizer

    from qsft.data.load import load_documents
    from qsft.teacher.capture.capture import build_cache

    documents, teacher, out = (given.pop(name) for name in list(BUILD)[:3])
    tokenizer = AutoTokenizer.from_pretrained(given.pop("tokenizer", teacher), revision=args.revision)
    return build_cache(load_documents(documents), teacher, out, tokenizer=tokenizer, **given).path


def run_info(args: argparse.Namespace) -> None:
    from qsft.teacher.verify import describe

    print(describe(args.directory))


def run_verify(args: argparse.Namespace) -> int:
    """Check the files, and with a teacher the values; 0 when all is well, 1 when not."""
    from qsft.teacher.verify import verify_files, verify_values

    sound, said = verify_files(args.directory, drop=args.drop)
    print(said)
    if sound and args.teacher:
        sound, said = verify_values(args.directory, args.teacher, args.revision, args.sample, args.tolerance)
        print(said)
    return 0 if sound else 1
