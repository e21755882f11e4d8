"""One module per command of `qsft`: its words of help, its options, and inside `run` the room that does the work."""

from typing import Any


def add_recipe(parser: Any, **more: Any) -> None:
    """The argument RECIPE of a command that takes `--key value` words for it."""
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or the name of a packaged recipe", **more)
    parser.set_defaults(takes_overrides=True)
