"""`qsft curate METHOD`: turn a data set into another one with a data-level method, ready for any target."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qsft.commands import check_no_dry_run, list_terms, suggest_option
from qsft.processes import is_main

HELP = "rewrite, extend or select demonstrations with a data-level method"
USAGE = "qsft curate METHOD [RECIPE] --output_dir DIR [options] [--key value ...]"
EXAMPLES = """\
examples:
  # rejection sampling for the data of a recipe, and training on the result
  qsft curate rft numina_qwen_math_1p5b --output_dir data/numina-rft \\
    --num_samples 8
  qsft train numina_qwen_math_1p5b --target sft --dataset_name data/numina-rft
  # choose among the responses in the columns a and b
  qsft curate grape --dataset_name mine.jsonl --model Qwen/Qwen2.5-1.5B \\
    --columns a,b --output_dir data/grape
  # three rounds, with training between them
  qsft curate star numina_qwen_math_1p5b --rounds 3 --start base \\
    --output_dir data/star --learning_rate 1e-5
  # verify responses with a function of your own
  qsft curate critical --dataset_name mine.jsonl --model Qwen/Qwen2.5-1.5B \\
    --verifier checks:is_right --output_dir data/critical
  # several processes share the work
  accelerate launch -m qsft curate rft numina_qwen_math_1p5b \\
    --output_dir data/rft
  # list the settings of a method
  qsft curate rft --help
"""


def description() -> str:
    from qsft.curate.registry import all_methods

    titles = {name: method.title for name, method in all_methods().items()}
    return (
        f"Make a new data set from an existing one. A killed curation continues.\n\nmethods:\n{list_terms(titles)}\n\n"
        "The data and the model are those of RECIPE, with any of its keys replaced, or those given by options."
    )


DESCRIPTION = description  # called when help is printed: it imports the methods


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", metavar="METHOD", help=argparse.SUPPRESS)
    # A recipe's keys are too many for argparse, and their values must not be taken for the recipe's name.
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="--output_dir DIR", help=argparse.SUPPRESS)
    parser.set_defaults(takes_overrides=True)


def run(args: argparse.Namespace) -> None:
    words = [*args.words, *args.overrides]
    recipe = words.pop(0) if words and not words[0].startswith("-") else None
    parser = method_parser(args.method)
    options, overrides = parser.parse_known_args(words)
    _check_overrides(args.method, overrides, parser)
    if options.model:
        overrides = [*overrides, "--model_name_or_path", options.model]
    from qsft.recipe.curate_recipe import curate_recipe
    from qsft.recipe.recipe_file import read_recipe

    source = read_recipe(recipe, overrides)
    check_no_dry_run(source, parser.prog)
    manifest = curate_recipe(source, make_curation(args.method, options))
    if is_main():
        start = recipe or f"--model_name_or_path {manifest['name']}"
        print(describe_curation(manifest, options.output_dir, start))


def _check_overrides(method: str, overrides: Sequence[str], parser: argparse.ArgumentParser) -> None:
    """Raise ValueError for a word that resembles an option of the method and is not a key of a recipe."""
    from qsft.recipe.keys import keys

    for word in overrides:
        name = word.removeprefix("--").partition("=")[0].partition(".")[0]
        guess = suggest_option(parser, word)
        if word.startswith("--") and name not in keys() and guess:
            raise ValueError(f"{word} is neither an option of `qsft curate {method}` nor a key of a recipe.{guess}")


def make_curation(method: str, options: argparse.Namespace) -> Any:
    """Return the curation that the options of a method describe; an option that was not given has its default."""
    from qsft.curate.registry import Options, describe_settings, find_method
    from qsft.recipe.curation import Curation

    known = describe_settings(find_method(method).settings)
    settings = {key: value for key, value in vars(options).items() if key in known and value is not None}
    return Curation(method, settings, Options.of(vars(options)), options.output_dir)


def describe_curation(manifest: Mapping[str, Any], output_dir: Path, start: str) -> str:
    """Return the counts and rates of a curated data set, and the command that trains on it."""
    from qsft.curate.registry import find_method

    counts = manifest["counts"]
    lines = [f"{counts['rows']:,} rows from {counts['problems']:,} problems in {output_dir}"]
    for what, count in {**manifest["rows by origin"], **counts}.items():
        if count:
            lines.append(f"  {count:>9,}  {what}")
    for what, rate in manifest["rates"].items():
        lines.append(f"  {rate:>9,.1f}  {what}" if rate > 1 else f"  {rate:>9.1%}  {what}")
    target = find_method(manifest["method"]).target
    lines += ["Train on it with", f"  qsft train {start} --target {target} --dataset_name {output_dir}"]
    return "\n".join(lines)


def method_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one method's options: its settings, and how it is run."""
    from qsft.curate.registry import Options, describe_settings, find_method

    method = find_method(name)
    parser = argparse.ArgumentParser(
        prog=f"qsft curate {name}",
        usage=f"qsft curate {name} [RECIPE] --output_dir DIR [--dataset_name DATA --model MODEL] [--key value ...]",
        description=f"{method.title} ({method.reference})",
        allow_abbrev=False,
    )
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="where the data set is written")
    parser.add_argument("--model", help="directory or Hub id of the model (default: the recipe's model_name_or_path)")
    _add_settings(parser, describe_settings(method.settings))
    _add_settings(parser.add_argument_group("how it is run"), describe_settings(Options))
    return parser


def _add_settings(parser: Any, settings: Any) -> None:
    for name, info in settings.items():
        text = info.help if info.default is None else f"{info.help} (default: {info.default!r})"
        arguments: dict[str, Any] = {"metavar": name.upper(), "help": text.replace("%", "%%"), "type": info.kind}
        if info.kind is bool:
            # A lone --overwrite means true, and so does --overwrite true.
            arguments.update(type=true_or_false, nargs="?", const=True)
        parser.add_argument(f"--{name}", **arguments)


def true_or_false(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word.lower() == "true"
