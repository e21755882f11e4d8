"""Texts with {places}: a question with a hint, a request to rewrite. Braces of LaTeX are left alone."""

import re
from collections.abc import Iterable, Mapping


def fill(template: str, values: Mapping[str, object]) -> str:
    r"""The template with its places filled, in one pass: what is filled in is not filled again.

    >>> fill(r"{question} \boxed{}", {"question": "{gold}?", "gold": 4})
    '{gold}? \\boxed{}'
    """
    return re.sub(r"\{(\w+)\}", lambda place: str(values.get(place[1], place[0])), template)


def require_places(name: str, template: str, places: Iterable[str]) -> None:
    """Refuse a template that lacks a place."""
    absent = [place for place in places if f"{{{place}}}" not in template]
    if absent:
        raise ValueError(f"{name}={template!r} has no {{{absent[0]}}}, so the model would not be told the {absent[0]}.")
