"""One module per command of `qsft`: its help, its options, and a `run` that calls the subpackage that does the work."""

import argparse
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from qsft.validation import did_you_mean

RECIPE_HELP = (
    "RECIPE is a file, or the name of a recipe that comes with qsft. --key value replaces one of its keys. Without a "
    "recipe, give only keys: --model_name_or_path X --teacher Y --dataset_name my.jsonl."
)


def list_terms(terms: Mapping[str, str]) -> str:
    """Return terms and their explanations for a help text, in two columns of 80 characters together."""
    width = max(map(len, terms)) + 4
    return "\n".join(
        fill(text, 80, initial_indent=f"  {term}".ljust(width), subsequent_indent=" " * width)
        for term, text in terms.items()
    )


def add_recipe(parser: Any) -> None:
    """Let a command take `[RECIPE] [--key value ...]` beside its own options.

    The recipe is not an argument of argparse, which would take the value of an unknown key for it. `cli` finds it:
    `args.recipe` is its name or None, `args.overrides` are the words of the keys.
    """
    parser.usage = f"{parser.prog} [RECIPE] [options] [--key value ...]"
    parser.epilog = f"{RECIPE_HELP}\n\n{parser.epilog or ''}"
    parser.set_defaults(takes_recipe=True, parser=parser)


def split_recipe(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the recipe, if the first word is one, and the other words."""
    if words and not words[0].startswith("-"):
        return words[0], list(words[1:])
    return None, list(words)


def read_given_recipe(args: argparse.Namespace, overrides: Sequence[str] = (), *, has_dry_run: bool = False) -> Any:
    """Return the recipe of a command with the given keys.

    Args:
        args: the arguments of a command that takes a recipe.
        overrides: further words of keys.
        has_dry_run: whether the command does what the key `dry_run` says.

    Raises:
        ValueError: neither a recipe nor a key was given, or the command has no dry run and one is requested.
    """
    from qsft.recipe.recipe_file import announce_recipe, read_recipe

    words = [*args.overrides, *overrides]
    check_given(args.recipe, words)
    own_options = [option.removeprefix("--") for option in long_options(args.parser)]
    recipe = read_recipe(args.recipe, words, own_options)
    if not has_dry_run:
        check_no_dry_run(recipe, args.parser.prog)
    announce_recipe(recipe)
    return recipe


def check_no_dry_run(recipe: Any, command: str) -> None:
    """Raise ValueError for a recipe with `dry_run`: the command would ignore it and start."""
    if recipe.settings.dry_run:
        raise ValueError(
            f"`{command}` has no dry run, so it would start. Leave --dry_run out. `qsft train` with "
            "--dry_run prints what the training of this recipe would do."
        )


def check_given(recipe: str | None, words: Sequence[str]) -> None:
    """Raise ValueError when neither a recipe nor a key was given."""
    if recipe is None and not words:
        raise ValueError("nothing is given. Name a RECIPE, or give --model_name_or_path and --dataset_name.")


def suggest_option(parser: argparse.ArgumentParser, word: str) -> str:
    """Return " Did you mean '--tasks'?" for a word that resembles an option of a command, or an empty string."""
    return did_you_mean(word.partition("=")[0], long_options(parser))


def long_options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a command that begin with two hyphens."""
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def given_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """Return the options among `words` by the name they were given with; a flag is True.

    Raises:
        ValueError: the parser does not know an option, or its value is not valid.
    """
    parser._defaults.clear()  # what `cli` reads, such as takes_recipe
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        if action.option_strings:
            action.dest = action.option_strings[0].removeprefix("--")
        if action.nargs == 0:
            action.const = True
    try:
        parsed, unknown = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(f"{parser.prog}: {error}") from None
    if unknown:
        raise ValueError(f"{parser.prog}: unknown option {unknown[0]!r}.")
    return vars(parsed)
