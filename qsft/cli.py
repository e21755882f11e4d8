"""The `qsft` command: finds the sub-command's module in qsft/commands/ and runs it.

A command's module imports only the standard library at the top, so that `qsft --help` does not import torch.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from textwrap import fill
from typing import Any

from qsft import __version__
from qsft.commands import split_recipe, suggest_option
from qsft.files import too_long_message
from qsft.processes import exit_process
from qsft.redaction import redact_text
from qsft.validation import did_you_mean

# In the order in which `qsft --help` lists them.
COMMANDS = ("demo", "targets", "train", "plan", "cache", "eval", "compare", "sweep", "report", "curate", "explore")

DESCRIPTION = """\
qsft: supervised fine-tuning as target distribution design.

  Q = γ·δ_y + (1−γ)·π̃      which distribution should the model match at every token?
"""

FIRST_STEPS = """\
first steps:
  # the paper's effect in minutes on a laptop CPU, without a download
  qsft demo
  # the named targets, each a choice of (γ, π̃)
  qsft targets
  # check a packaged recipe and print what it would do
  qsft train numina_qwen_math_1p5b --dry_run
"""


class Parser(argparse.ArgumentParser):
    """A parser that prints examples as they are written and does not complete abbreviated options.

    A description may be a function, called when help is printed: it may import what it describes.
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(**kwargs)
        self.set_defaults(parser=self)  # after parsing, that of the command which was given

    def format_help(self) -> str:
        """Return the help with long lines of description and epilog wrapped; indented lines are examples."""
        description = self.description() if callable(self.description) else self.description
        self.description = _wrap(description or "")
        self.epilog = _wrap(self.epilog or "")
        return super().format_help()


def _wrap(text: str) -> str:
    return "\n".join(line if line.startswith(" ") else fill(line, 80) for line in text.splitlines())


def build_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="qsft", description=DESCRIPTION, epilog=FIRST_STEPS)
    parser.add_argument("--version", action="version", version=f"qsft {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        _add_command(commands, name)
    return parser


def _add_command(commands: Any, name: str) -> None:
    """Add the command of a module: HELP, DESCRIPTION, EXAMPLES, its options, and what it runs (or else its help)."""
    module = import_module(f"qsft.commands.{name}")
    parser = commands.add_parser(
        name,
        help=module.HELP,
        description=module.DESCRIPTION,
        epilog=module.EXAMPLES,
        usage=getattr(module, "USAGE", None),
    )
    parser.set_defaults(run=getattr(module, "run", lambda args: parser.print_help()))
    module.add_options(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; an error that a user can act on is printed without a traceback."""
    try:
        return run_command(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:  # `qsft targets | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, FloatingPointError) as error:  # the last is a loss that is not finite
        print(f"qsft: {redact_text(_message(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nqsft: interrupted; rerun the command to continue from what is finished.", file=sys.stderr)
        return 130


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and error.filename is not None:
        return too_long_message(error.filename)
    return str(error)


def run_command(words: Sequence[str]) -> int:
    """Run a command and return its exit code; its errors are raised."""
    parser = build_parser()
    check_text(words)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        suggestion = did_you_mean(words[0], COMMANDS)
        parser.error(f"there is no command {words[0]!r}.{suggestion} Commands: {', '.join(COMMANDS)}.")
    args, unknown = parser.parse_known_args(words)
    args.overrides = unknown
    if getattr(args, "takes_recipe", False):
        args.recipe, args.overrides = split_recipe(unknown)
    elif unknown and not getattr(args, "takes_overrides", False):
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}.{suggest_option(args.parser, unknown[0])}")
    return int(args.run(args) or 0)


def check_text(words: Sequence[str]) -> None:
    """Raise ValueError for a word whose bytes are not UTF-8: records and pages, which name it, could not be written."""
    for word in words:
        shown = word.encode(errors="backslashreplace").decode()
        if shown != word:
            raise ValueError(f"{shown!r} is not UTF-8 text. Rename the file or directory, so that records can name it.")


def command() -> None:
    """The entry point of the console script."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may be unable to show γ and π̃
    exit_process(main())
