"""`qsft curate METHOD`: turn a data set into another one with a data-level method, ready for any target."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

EXAMPLES = """\
examples:
  qsft curate rft numina_qwen_math_1p5b --out data/numina-rft --n 8
  qsft curate grape --dataset mine.jsonl --model Qwen/Qwen2.5-1.5B --columns answer_a,answer_b --out data/grape
  qsft curate star numina_qwen_math_1p5b --rounds 3 --start base --out data/numina-star --learning_rate 1e-5
  qsft curate critical --dataset mine.jsonl --model Qwen/Qwen2.5-1.5B --verifier checks:is_right --out data/critical
  qsft train numina_qwen_math_1p5b --target sft --dataset_name data/numina-rft
  accelerate launch -m qsft curate rft numina_qwen_math_1p5b --out data/numina-rft    shared by several processes
  qsft curate rft --help                                                              a method's settings
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "curate",
        usage="qsft curate METHOD [RECIPE] --out DIR [--dataset DATA --model MODEL] [--key value ...]",
        help="rewrite, extend or choose demonstrations: rft, star, grape, self_distill, critical",
        description=description,
        epilog=EXAMPLES,
    )
    parser.add_argument("method", metavar="METHOD", help=argparse.SUPPRESS)
    # A recipe's keys are too many for argparse, and their values must not be taken for the recipe's name.
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="--out DIR", help=argparse.SUPPRESS)
    parser.set_defaults(run=run, takes_overrides=True)


def description() -> str:
    """What the command does and with which methods."""
    from qsft.curate.methods import METHODS, summary

    methods = "\n".join(f"  {name:<13} {summary(method)}" for name, method in METHODS.items())
    return (
        f"Turn a data set into another one. A killed run continues where it was.\n\nmethods:\n{methods}\n\n"
        "The data and the model are RECIPE's, with any of its keys replaced, or those given by options."
    )


def run(args: argparse.Namespace) -> int:
    """Curate, and say what was kept, where it is and how to train on it."""
    from qsft.curate.methods import find_method, settings_of
    from qsft.curate.options import Options

    words = [*args.words, *args.overrides]
    name = words.pop(0) if words and not words[0].startswith("-") else None
    settings = settings_of(find_method(args.method))
    given, rest = method_parser(args.method).parse_known_args(words)

    from qsft.processes import process_group
    from qsft.recipe.job import configure
    from qsft.recipe.material import curate_job
    from qsft.recipe.recipe_file import read_recipe

    recipe = read_recipe(name, [*rest, *(["--model_name_or_path", given.model] if given.model else [])])
    recipe = replace(recipe, values={key: value for key, value in recipe.values.items() if key != "curate"})
    chosen = {key: value for key, value in vars(given).items() if key in settings and value is not None}
    with process_group():
        job = configure(recipe)
        manifest = curate_job(job, args.method, chosen, given.out, Options.of(vars(given)))
        if job.args.process_index == 0:
            print(conclusion(manifest, given.out, name))
    return 0


def method_parser(method: str) -> argparse.ArgumentParser:
    """The options of one method."""
    from qsft.curate.methods import find_method, settings_of, summary
    from qsft.curate.options import add_options

    parser = argparse.ArgumentParser(
        prog=f"qsft curate {method}",
        usage=f"qsft curate {method} [RECIPE] --out DIR [--dataset DATA --model MODEL] [--key value ...]",
        description=summary(find_method(method)),
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the data set goes")
    parser.add_argument("--model", help="directory or hub id (default: the recipe's model_name_or_path)")
    for key, setting in settings_of(find_method(method)).items():
        kind = true_or_false if setting.kind is bool else setting.kind
        text = f"{setting.help} (default: {setting.default!r})".replace("%", "%%")
        parser.add_argument(f"--{key}", type=kind, metavar=key.upper(), help=text)
    add_options(parser)
    return parser


def true_or_false(word: str) -> bool:
    """What a word of the command line says."""
    if word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word.lower() == "true"


def conclusion(manifest: dict[str, Any], out: Path, recipe: str | None) -> str:
    """What was kept, where it is and what to do next."""
    lines = [f"{manifest['counts']['rows']:,} rows from {manifest['counts']['problems']:,} problems in {out}"]
    counts = {**manifest["rows by origin"], **manifest["counts"]}
    lines += [f"  {count:>9,}  {name}" for name, count in counts.items() if count]
    for name, value in manifest["rates"].items():
        lines.append(f"  {value:>9,.1f}  {name}" if value > 1 else f"  {value:>9.1%}  {name}")
    target = "cft" if manifest["method"] == "critical" else "sft"
    start = recipe or f"--model_name_or_path {manifest['name']}"
    return "\n".join([*lines, "Train on it with", f"  qsft train {start} --target {target} --dataset_name {out}"])
