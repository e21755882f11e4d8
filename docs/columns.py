"""The columns of our docstrings (`name   what it is`) as lists, for the site: an extension of griffe."""

import re
from typing import Any

import griffe


class Columns(griffe.Extension):
    """Turns lines of name, two or more spaces and text into items; what is indented far continues the line above."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of whatever was read."""
        if obj.docstring:
            items = re.sub(r"^(\w+) {2,}(?=[\w`\"(])", r"- `\1`: ", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"\n {6,}(?=\S)", "\n  ", items)
