"""`qsft cache`: build, describe, check, list and remove teacher caches."""

import argparse
from collections.abc import Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from qsft.commands import add_recipe, read_given_recipe
from qsft.processes import is_main
from qsft.validation import counted

if TYPE_CHECKING:
    from pathlib import Path

    from qsft.teacher.location import CacheSummary
    from qsft.teacher.verify import Verification

HELP = "build, describe, check, list or remove teacher caches"
DESCRIPTION = "Build, describe, check, list or remove teacher caches."
EXAMPLES = """\
examples:
  # the documents that training reads, on this process
  qsft cache build numina_qwen_math_1p5b
  # the same, on all processes
  accelerate launch -m qsft cache build recipes/NAME.yaml
  # a data set and a teacher without a recipe
  qsft cache build --dataset_path DATA \\
    --teacher Qwen/Qwen2.5-Math-7B-Instruct --output_dir CACHE
  # what a cache holds, and who made it
  qsft cache info CACHE
  # the cache that training this recipe uses
  qsft cache info numina_qwen_math_1p5b
  # every checksum, and 32 documents against the teacher itself
  qsft cache verify CACHE --teacher Qwen/Qwen2.5-Math-7B-Instruct --sample 32
  # all default caches: teacher, size, last use, data
  qsft cache list
  # remove caches that were not used for 90 days; asks first
  qsft cache prune --older_than 90
"""

REQUIRED_WITHOUT_RECIPE = ("dataset_path", "teacher", "output_dir")
# Options of a build without a recipe.
BUILD_OPTIONS: dict[str, dict[str, Any]] = {
    "dataset_path": {"help": "data set with input_ids and labels: a save_to_disk directory, .parquet or .jsonl"},
    "teacher": {"metavar": "MODEL", "help": "path or Hub id of a causal LM or of a LoRA adapter"},
    "output_dir": {"metavar": "DIR", "help": "directory of the cache"},
    "tokenizer": {"help": "the tokenizer of the data (default: the teacher's)"},
    "top_k": {"type": int, "help": "number of tokens to store per label token (default 64)"},
    "cache_encoding": {
        "choices": ("exact", "compact"),
        "help": "exact (277 bytes per label token at k = 64 and 152k tokens) or compact (227 bytes)",
    },
    "top_p": {"type": float, "help": "keep only the most likely tokens that together have this share of the mass"},
    "min_k": {"type": int, "help": "minimum number of tokens to keep with top_p (default 1)"},
    "batch_tokens": {"type": int, "help": "tokens per forward pass, including padding (default 16384)"},
    "dtype": {"help": "dtype of the teacher: bfloat16, float32, ... (default: that of its checkpoint)"},
    "revision": {"help": "revision of the teacher on the Hub"},
}


def add_options(parser: Any) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    _add_build(actions)
    _add_info(actions)
    _add_verify(actions)
    _add_list(actions)
    _add_prune(actions)


def _add_build(actions: Any) -> None:
    build = actions.add_parser(
        "build",
        help="run the teacher over a data set and store its log-probs",
        description="Build the cache of a recipe, with any of its keys replaced, or of a tokenized data set. Documents "
        "that are already in the cache are not computed again.",
        epilog=EXAMPLES,
    )
    add_recipe(build)
    for name, settings in BUILD_OPTIONS.items():
        build.add_argument(f"--{name}", **settings)
    build.set_defaults(run=run_build)


def _add_info(actions: Any) -> None:
    info = actions.add_parser(
        "info",
        help="describe a cache: its teacher, content and size",
        description="Describe a cache, or the cache that training a recipe uses: its teacher, content and size.",
    )
    _add_cache_or_recipe(info)
    info.set_defaults(run=run_info)


def _add_cache_or_recipe(parser: Any) -> None:
    """Let an action take `DIR`, or `[RECIPE] [--key value ...]` for the cache that training would use."""
    add_recipe(parser)
    parser.usage = f"{parser.prog} DIR|RECIPE [options] [--key value ...]"


def _add_verify(actions: Any) -> None:
    verify = actions.add_parser(
        "verify",
        help="check every checksum and bound, and with --teacher the values and their alignment",
        description="Check every checksum and bound of a cache, or of the cache that training a recipe uses. With "
        "--teacher, check also the values and their alignment.",
    )
    _add_cache_or_recipe(verify)
    verify.add_argument(
        "--drop", action="store_true", help="remove damaged files; the next build computes their documents again"
    )
    verify.add_argument(
        "--teacher", metavar="MODEL", help="compute sampled documents again with this teacher, and compare the values"
    )
    verify.add_argument("--revision", help="revision of the teacher on the Hub")
    verify.add_argument(
        "--sample", type=int, default=64, metavar="N", help="number of documents to compute again (default 64)"
    )
    verify.add_argument("--tolerance", type=float, default=0.02, help="maximum mean KL at shift 0 (default 0.02 nats)")
    verify.set_defaults(run=run_verify)


def _add_list(actions: Any) -> None:
    listing = actions.add_parser(
        "list",
        help="list the default caches with teacher, size, last use and data",
        description="List the default caches, or those in DIR, with teacher, size, last use and data.",
    )
    listing.add_argument("directory", metavar="DIR", nargs="?", help="another directory that holds caches")
    listing.set_defaults(run=run_list)


def _add_prune(actions: Any) -> None:
    prune = actions.add_parser(
        "prune",
        help="remove default caches by age or name, after a confirmation",
        description="Remove default caches, or those in DIR, by age or name. The command asks for confirmation.",
    )
    prune.add_argument("directory", metavar="DIR", nargs="?", help="another directory that holds caches")
    prune.add_argument(
        "--older_than", type=float, metavar="DAYS", help="select caches that were not used for this many days"
    )
    prune.add_argument("--name", metavar="TEXT", help="select caches whose directory or teacher contains this text")
    prune.add_argument("--yes", action="store_true", help="remove without asking")
    prune.set_defaults(run=run_prune)


# ---- build ----


def run_build(args: argparse.Namespace) -> None:
    options = {name: getattr(args, name) for name in BUILD_OPTIONS if getattr(args, name) is not None}
    if args.recipe is None and not args.overrides:
        directory = _build_from_options(args, options)
    else:
        directory = _build_from_recipe(args, options)
    if is_main():
        print(describe_cache(directory))


def _build_from_recipe(args: argparse.Namespace, options: dict[str, Any]) -> "Path":
    overrides = []
    for name in ("teacher", "dtype"):  # keys of a recipe as well
        if name in options:
            overrides += [f"--{name}", str(options.pop(name))]
    if options:
        raise ValueError(
            f"--{next(iter(options))} belongs to a build without a recipe. With a recipe use its own keys: "
            "--teacher_model_name_or_path, --teacher_cache, --teacher_top_k, ... (`qsft train --keys` lists them)."
        )
    recipe = read_given_recipe(args, overrides)
    from qsft.recipe.recipe_cache import build_recipe_cache

    return build_recipe_cache(recipe).path


def _build_from_options(args: argparse.Namespace, options: dict[str, Any]) -> "Path":
    missing = [f"--{name}" for name in REQUIRED_WITHOUT_RECIPE if name not in options]
    remedy = "Name a RECIPE, or give --dataset_path, --teacher and --output_dir."
    if missing:
        raise ValueError(f"{', '.join(missing)} not given. {remedy}")

    from qsft.data.rows import load_documents
    from qsft.inference.loading import load_tokenizer
    from qsft.teacher.capture.capture import build_cache
    from qsft.teacher.sources.transformers_source import TransformersSource

    documents = load_documents(options.pop("dataset_path"))
    teacher = options.pop("teacher")
    output_dir = options.pop("output_dir")
    tokenizer_name = options.pop("tokenizer", None)
    if tokenizer_name is None:
        tokenizer: Any = TransformersSource(teacher, revision=args.revision).tokenizer()
        if tokenizer is None:
            raise ValueError(f"the teacher {teacher} has no tokenizer of its own. Give --tokenizer.")
    else:
        tokenizer = load_tokenizer(tokenizer_name)
    return build_cache(documents, teacher, output_dir, tokenizer=tokenizer, **options).path


# ---- info and verify ----


def run_info(args: argparse.Namespace) -> None:
    print(describe_cache(_given_cache(args)))


def _given_cache(args: argparse.Namespace, overrides: Sequence[str] = ()) -> "str | Path":
    """Return the directory of the cache that is named itself, or that a recipe with some overrides uses."""
    from pathlib import Path

    from qsft.recipe.recipe_file import is_recipe

    if args.recipe is not None and (Path(args.recipe).is_dir() or not is_recipe(args.recipe)):
        if args.overrides:
            raise ValueError(f"{args.overrides[0]!r} is a key of a recipe, but {args.recipe} is not a recipe.")
        return str(args.recipe)
    recipe = read_given_recipe(args, overrides)
    from qsft.recipe.recipe_cache import find_recipe_cache

    return find_recipe_cache(recipe)


def describe_cache(directory: "str | Path") -> str:
    """Return what a cache holds, who made it and how large it is, as lines of text."""
    from qsft.files import shown
    from qsft.teacher.cache import TeacherCache

    cache = TeacherCache(directory)
    identity = cache.manifest.identity
    teacher = identity.teacher
    name = str(teacher.get("name"))
    if teacher.get("revision"):
        name += f" @ {teacher['revision']}"
    encoding = f"{identity.cache_encoding}, k={identity.top_k}"
    if identity.top_p is not None:
        encoding += f", top_p={identity.top_p}"
    lines = [("teacher", name)]
    if teacher.get("base"):
        lines.append(("adapter of", str(teacher["base"]["name"])))
    if teacher.get("loading"):
        lines.append(("loaded with", ", ".join(f"{key}={value}" for key, value in teacher["loading"].items())))
    lines += [
        ("computed in", identity.dtype),
        ("vocabulary", f"{identity.vocab_size:,} entries, {identity.tokenizer['tokens']:,} tokens"),
        ("encoding", encoding),
        ("documents", f"{len(cache):,} in {counted(len(cache.shards), 'shard')}"),
    ]
    for name, value in cache.manifest.measured.items():
        if name != "documents":
            lines.append((name.replace("_", " "), f"{value:,.6g}"))
    lines += [(f"made with {name}", version) for name, version in cache.manifest.libraries.items()]
    return "\n".join([f"teacher cache {shown(cache.path)}", *_columns(lines)])


def run_verify(args: argparse.Namespace) -> int:
    """Check the files, and with a teacher the values; return 0 when all is well, 1 when not."""
    from qsft.teacher.verify import verify_cache

    teacher = [] if args.teacher is None else ["--teacher", args.teacher]  # a key of a recipe as well
    directory = _given_cache(args, teacher)
    report = verify_cache(directory, progress=True)
    _print_verification(report, drop=args.drop)
    if not report.ok:
        return 1
    if args.teacher and not _verify_values(args, directory):
        return 1
    return 0


def _print_verification(report: "Verification", *, drop: bool) -> None:
    from qsft.files import shown

    if report.ok:
        counts = f"{counted(report.documents, 'document')}, {counted(report.label_tokens, 'label token')}"
        print(f"{counts}, {report.bytes / 1e6:,.1f} MB: all sound")
        return
    for problem in report.problems.values():
        print(f"- {problem}")
    print(f"{counted(len(report.problems), 'unsound file')} in {shown(report.path)}")
    if drop:
        left = report.drop()
        removed = len(report.problems) - len(report.kept)
        verb = "is" if left == 1 else "are"
        print(f"removed {removed}; {counted(left, 'document')} {verb} left. Build the cache again for the others.")


def _verify_values(args: argparse.Namespace, directory: "str | Path") -> bool:
    """Print how sampled documents agree with the teacher; whether they do, at the position they are stored for."""
    from qsft.teacher.cache import TeacherCache
    from qsft.teacher.identity import teacher_difference
    from qsft.teacher.sources.transformers_source import TransformersSource
    from qsft.teacher.spot_check import CONFIDENCE, compare_with_teacher, sample_documents

    cache = TeacherCache(directory)
    identity = cache.manifest.identity
    source = TransformersSource(args.teacher, dtype=identity.dtype, revision=args.revision)
    documents = sample_documents(cache, args.sample)
    check = compare_with_teacher(cache, source.load(), documents)
    difference = teacher_difference(identity.teacher, source.describe())
    if difference is not None:
        print(f"note: the cache holds the log-probs of {difference}")
    sample = f"{counted(len(documents), 'document')} of {counted(len(cache.shards), 'shard')}"
    print(f"\n{sample} computed again with {args.teacher}:")
    lines = [("shift", "KL(cached‖teacher)", "same top-1", "label tokens")]
    for agreement in check.table:
        values = (f"{agreement.kl:.3g}", f"{agreement.top1:.1%}", f"{agreement.label_tokens:,}")
        lines.append((f"{agreement.shift:+d}", *values))
    print("\n".join(_columns(lines)))
    if check.is_aligned(args.tolerance):
        print(
            "aligned: the log-probs at shift 0 are the teacher's. No sampled document differs, so with "
            f"{CONFIDENCE:.0%} confidence at most {check.undetected_share:.1%} of all do (--sample N for more)"
        )
        return True
    wrong = f"{check.differing(args.tolerance)} of {counted(len(documents), 'document')}"
    print(f"NOT aligned: the cached log-probs of {wrong} are not this teacher's at shift 0")
    return False


# ---- list and prune ----


def run_list(args: argparse.Namespace) -> None:
    from qsft.teacher.location import list_caches

    root = _cache_root(args)
    caches = list_caches(root)
    if not caches:
        print(f"there are no teacher caches in {root}")
        return
    _print_caches(caches)


def run_prune(args: argparse.Namespace) -> int:
    """Remove the selected caches after asking; return 1 when the user declines."""
    from qsft.teacher.location import list_caches, remove_cache

    if args.older_than is None and args.name is None:
        raise ValueError("nothing selected. Give --older_than DAYS, --name TEXT, or both.")
    root = _cache_root(args)
    selected = [cache for cache in list_caches(root) if _is_selected(cache, args)]
    if not selected:
        print(f"no teacher cache in {root} matches")
        return 0
    _print_caches(selected)
    if not args.yes and not _confirm(f"Remove {counted(len(selected), 'cache')}?"):
        print("nothing was removed")
        return 1
    for cache in selected:
        remove_cache(cache.path)
    print(f"removed {counted(len(selected), 'cache')}, {sum(cache.bytes for cache in selected) / 1e9:,.2f} GB")
    return 0


def _cache_root(args: argparse.Namespace) -> "Path":
    from pathlib import Path

    from qsft.teacher.location import default_cache_root

    return default_cache_root() if args.directory is None else Path(args.directory)


def _is_selected(cache: "CacheSummary", args: argparse.Namespace) -> bool:
    from datetime import datetime, timedelta

    if args.older_than is not None:
        oldest = datetime.now(UTC) - timedelta(days=args.older_than)
        if cache.last_use > oldest:
            return False
    return args.name is None or args.name in cache.path.name or args.name in cache.teacher


def _print_caches(caches: "Sequence[CacheSummary]") -> None:
    for cache in caches:
        print(cache.path)
        details = [
            ("teacher", f"{cache.teacher} ({cache.settings})" if cache.settings else cache.teacher),
            ("size", f"{cache.bytes / 1e9:,.2f} GB"),
            ("last use", cache.last_use.astimezone().strftime("%Y-%m-%d %H:%M")),
        ]
        details += [("data", data) for data in cache.data]
        print("\n".join(_columns(details)))
    print(f"{counted(len(caches), 'cache')}, {sum(cache.bytes for cache in caches) / 1e9:,.2f} GB")


def _confirm(question: str) -> bool:
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # no terminal to ask
        return False


def _columns(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells, aligned in columns."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
