"""Text templates with {places}; other braces, such as those of LaTeX, stay as they are."""

import re
from collections.abc import Iterable, Mapping


def fill_template(template: str, values: Mapping[str, object]) -> str:
    r"""The template with its places filled, in one pass.

    >>> fill_template(r"{question} \\boxed{}", {"question": "1 + 1?"})
    '1 + 1? \\\\boxed{}'
    """
    return re.sub(r"\{(\w+)\}", lambda place: str(values.get(place[1], place[0])), template)


def check_places(name: str, template: str, places: Iterable[str]) -> None:
    """Raise ValueError if a template lacks one of these places."""
    for place in places:
        if f"{{{place}}}" not in template:
            raise ValueError(f"--{name} {template!r} has no {{{place}}}, so the model would not see the {place}.")
