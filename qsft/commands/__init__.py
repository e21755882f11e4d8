"""One module per command of `qsft`: its help, its options, and a `run` that calls the subpackage that does the work."""

import argparse
from collections.abc import Sequence
from typing import Any


def add_recipe(parser: Any, **more: Any) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or the name of a packaged recipe", **more)
    parser.set_defaults(takes_overrides=True)


def given_options(parser: argparse.ArgumentParser, words: Sequence[str]) -> dict[str, Any]:
    """Return the options among `words` by the name they were given with; a flag is True.

    Raises:
        ValueError: The parser does not know an option, or its value is not valid.
    """
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
