"""One module per command of `qsft`: its words of help, its options, and inside `run` the room that does the work."""

from typing import Any


def add_recipe(parser: Any, **more: Any) -> None:
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or the name of a packaged recipe", **more)
    parser.set_defaults(takes_overrides=True)
