"""The `qsft` command: a list of commands, each a module of qsft/commands/. No logic here.

A command's module imports only the standard library at the top, so that `qsft --help` does not import torch.
"""

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from textwrap import fill
from typing import Any

from qsft import __version__
from qsft.processes import exit_process

# The order in which `qsft --help` lists them: what a newcomer types first stands first.
COMMANDS = ("demo", "targets", "train", "plan", "cache", "eval", "compare", "sweep", "report", "curate", "explore")

ABOUT = """\
qsft: supervised fine-tuning as target distribution design.

  Q = γ·δ_y + (1−γ)·π̃      which distribution should the model match at every token?
"""

FIRST_STEPS = """\
type first:
  qsft demo                                    the paper's effect in minutes on a laptop CPU, no download
  qsft targets                                 every published variant as a choice of (γ, π̃)
  qsft train numina_qwen_math_1p5b --dry_run   what a recipe would do
"""


class Parser(argparse.ArgumentParser):
    """Prints examples as they are written, and takes no option for the beginning of another.

    A description may be a function, asked only when help is printed: it may import what it describes.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False, **kwargs})

    def format_help(self) -> str:
        """The help, with long lines of the description broken: the formatter keeps them, as it keeps the examples."""
        text = self.description() if callable(self.description) else self.description or ""
        self.description = "\n".join(line if line.startswith(" ") else fill(line, 96) for line in text.splitlines())
        return super().format_help()


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="qsft", description=ABOUT, epilog=FIRST_STEPS)
    parser.add_argument("--version", action="version", version=f"qsft {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        add_command(commands, name)
    return parser


def add_command(commands: Any, name: str) -> None:
    """Add what a module of qsft/commands/ says: HELP, DESCRIPTION, EXAMPLES, its options, what it runs or its help."""
    module = import_module(f"qsft.commands.{name}")
    words = {"help": module.HELP, "description": module.DESCRIPTION, "usage": getattr(module, "USAGE", None)}
    parser = commands.add_parser(name, epilog=module.EXAMPLES, **words)
    parser.set_defaults(run=getattr(module, "run", lambda args: parser.print_help()))
    module.add_options(parser)


def main(argv: Sequence[str] | None = None) -> int:
    try:
        return run_command(sys.argv[1:] if argv is None else argv)
    except (ValueError, OSError) as error:
        # A message that says what, why and what to do needs no traceback above it.
        print(f"qsft: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nqsft: interrupted; rerun the command to continue from what is finished.", file=sys.stderr)
        return 130


def run_command(words: Sequence[str]) -> int:
    parser = build_parser()
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        guess = "".join(f" Did you mean `qsft {name}`?" for name in get_close_matches(words[0], COMMANDS, n=1))
        parser.error(f"there is no command {words[0]!r}.{guess} Commands: {', '.join(COMMANDS)}.")
    args, rest = parser.parse_known_args(words)
    args.overrides = rest
    if rest and not getattr(args, "takes_overrides", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return int(args.run(args) or 0)


def command() -> None:
    exit_process(main())
