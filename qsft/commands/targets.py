"""`qsft targets`: the named targets."""

import argparse
import textwrap

HELP = "list the named targets, each a choice of (γ, π̃)"
DESCRIPTION = "List the named targets, or describe one of them."
EXAMPLES = """\
examples:
  # every target with what it needs and a short description
  qsft targets
  # formula, hyper-parameters and reference of one target
  qsft targets target_sft
  # the table as Markdown
  qsft targets --markdown
"""
WIDTH = 80


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the target to describe")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def run(args: argparse.Namespace) -> None:
    from qsft.targets import table

    if args.name:
        print(table.describe(args.name))
    elif args.markdown:
        print(table.markdown())
    else:
        print(list_targets(table.entries()))


def list_targets(entries: list[dict[str, str]]) -> str:
    """Return a table of 80 columns: name, needs, one sentence."""
    name_width = max(len(entry["name"]) for entry in entries) + 2
    needs_width = max(len(needs_in_words(entry)) for entry in entries) + 2
    indent = " " * (name_width + needs_width)
    lines = [f"{'name':<{name_width}}{'needs':<{needs_width}}what it does"]
    for entry in entries:
        first = f"{entry['name']:<{name_width}}{needs_in_words(entry):<{needs_width}}"
        lines.append(
            textwrap.fill(
                entry["summary"], WIDTH, initial_indent=first, subsequent_indent=indent, break_long_words=False
            )
        )
    lines += ["", "`qsft targets NAME` shows formula, hyper-parameters and reference of one target."]
    return "\n".join(lines)


def needs_in_words(entry: dict[str, str]) -> str:
    """What a target reads beside the labels, in one word each."""
    words = {"ref_logp": "reference", "old_logp": "old policy", "critical": "a column"}
    needs = [words.get(need, need) for need in entry["needs"].split(", ") if need != "document"]
    return ", ".join(dict.fromkeys(needs))
