"""The page of the command line, generated from the parsers.

`python tools/cli_reference.py --write` (make docs) writes docs/cli.md; a test fails when the page is not current.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
PAGE = REPO / "docs" / "cli.md"
WIDTH = "80"  # columns of the help texts, whatever the terminal: what the site shows without scrolling

INTRODUCTION = (
    "# Command line\n\n"
    "This page has the help text of every command. It is generated from the parsers by `make docs`. Commands that take "
    "a RECIPE also take every key of a recipe as an option, with or without a recipe. `qsft train --keys` lists all "
    "keys, and `qsft train --keys PATTERN` lists those that contain PATTERN.\n"
)


def page() -> str:
    """The text of docs/cli.md."""
    os.environ["COLUMNS"] = WIDTH
    from qsft.cli import build_parser

    parts = [INTRODUCTION]
    for name, parser in commands(build_parser(), "qsft"):
        parts.append(f"## {name}\n\n```text\n{parser.format_help().strip()}\n```\n")
    return "\n".join(parts)


def commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands below a parser with their full names, subcommands after their command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield f"{name} {word}", command
                yield from commands(command, f"{name} {word}")


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(page(), encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != page():
        sys.exit(f"{PAGE} is not current: run `make docs`.")
