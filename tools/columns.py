"""Our docstrings and settings as the site shows them: an extension of griffe.

Columns (`name   what it is`) become lists, examples become code, and a field made by `option(default, help)` shows its
default where the signature stands and its help in a list below.
"""

import ast
import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?)*)+", re.MULTILINE)


class Columns(griffe.Extension):
    """Rewrites docstrings into the Markdown that they mean."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Columns to items, what is indented far to their continuation, examples to code."""
        if obj.docstring:
            items = re.sub(r"^(\w+) {2,}(?=[\w`\"(])", r"- `\1`: ", obj.docstring.value, flags=re.MULTILINE)
            joined = re.sub(r"\n {6,}(?=\S)", "\n  ", items)
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", joined)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """The fields made by `option`: the default as their value, the help as an item of the class's docstring."""
        helps = []
        for field in list(cls.attributes.values()):
            if isinstance(field.value, griffe.ExprCall) and str(field.value.function) == "option":
                default, text, *_ = field.value.arguments
                helps.append(f"- `{field.name}`: {ast.literal_eval(str(text))}")
                field.value = default
        if helps and cls.docstring:
            cls.docstring.value += "\n\n" + "\n".join(helps)
