"""Text templates with {names}; other braces, such as those of LaTeX, stay as they are."""

import re
from collections.abc import Iterable, Mapping


def fill_template(template: str, values: Mapping[str, object]) -> str:
    r"""The template with each {name} replaced by its value, in one pass.

    >>> fill_template(r"{question} \\boxed{}", {"question": "1 + 1?"})
    '1 + 1? \\\\boxed{}'
    """
    return re.sub(r"\{(\w+)\}", lambda name: str(values.get(name[1], name[0])), template)


def check_template(setting: str, template: str, names: Iterable[str]) -> None:
    """Raise ValueError if a template lacks one of these names."""
    for name in names:
        if f"{{{name}}}" not in template:
            raise ValueError(
                f"--{setting} {template!r} has no {{{name}}}, so the model would not see the {name}. Add {{{name}}}."
            )
