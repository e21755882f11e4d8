"""Does a value have the type its field declares? And the same for a word of the command line.

YAML 1.1 reads `5e-5` and `None` as text without a word of warning; here they are errors that say what to write.
"""

import json
from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def options(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the type alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value has the annotated type: an int serves as a float, a bool serves as neither."""
    return any(_fits_one(value, option) for option in options(hint))


def _fits_one(value: Any, hint: Any) -> bool:
    origin = get_origin(hint) or hint
    if origin is Any:
        return True
    if origin is Literal:
        return value in get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(fits(item, (get_args(hint) or (Any,))[0]) for item in value)
    if origin is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(origin, type) and isinstance(value, origin)


def complaint(value: Any, hint: Any) -> str:
    """Why `value` is refused where `hint` is declared, and what to write instead."""
    if value == "None":
        return f"{value!r} is text in YAML. Leave the key out to keep its default, or write null."
    if isinstance(value, str) and {int, float} & set(options(hint)) and _number(value) is not None:
        return f"{value!r} is text in YAML 1.1. Write {_yaml_number(_number(value))}, without quotes."
    return f"{value!r} is {_article(type(value))}, but {describe(hint)} is needed."


def describe(hint: Any) -> str:
    """A type in a few words: `float or null`."""
    names = []
    for option in options(hint):
        if get_origin(option) is Literal:
            names += [repr(value) for value in get_args(option)]
        elif not (isinstance(option, type) and issubclass(option, Enum)):  # always beside `str`
            names.append("null" if option is NoneType else getattr(get_origin(option) or option, "__name__", "any"))
    return " or ".join(names)


def parse_words(words: list[str], hint: Any) -> Any:
    """The words after `--key` as a value of the annotated type; a ValueError says what was expected."""
    if not words:
        if bool in options(hint):
            return True
        raise ValueError(f"needs a value: {describe(hint)}.")
    if len(words) > 1 and not any(get_origin(option) is list for option in options(hint)):
        raise ValueError(f"takes one value ({describe(hint)}), but got {' '.join(words)!r}.")
    if words == ["none"] and str in options(hint):
        return "none"  # a word of its own for report_to and others; null and None say that there is no value
    for option, read in _READERS:
        if any((get_origin(o) or o) is option for o in options(hint)):
            value = read(words)
            if value is not _UNREAD:
                return value
    if fits(words[0], hint):
        return words[0]
    raise ValueError(f"{' '.join(words)!r} was given, but {describe(hint)} is needed.")


def loose(word: str) -> Any:
    """A word whose type nobody declares (a hyper-parameter): a number, JSON, true or false, null, or text."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if word.lower() in ("none", "null"):
        return None
    number = _number(word)
    return _json(word, word) if number is None else number


_UNREAD = object()


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _yaml_number(number: int | float | None) -> str:
    """5e-05 as 5.0e-05: YAML 1.1 wants the point."""
    text = repr(number)
    return text if "." in text else text.replace("e", ".0e")


def _json(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return otherwise


def _none(words: list[str]) -> Any:
    return None if words[0].lower() in ("none", "null") else _UNREAD


def _bool(words: list[str]) -> Any:
    word = words[0].lower()
    return True if word in YES else False if word in NO else _UNREAD


def _int(words: list[str]) -> Any:
    number = _number(words[0])
    return number if isinstance(number, int) else _UNREAD


def _float(words: list[str]) -> Any:
    number = _number(words[0])
    return _UNREAD if number is None else float(number)


def _dict(words: list[str]) -> Any:
    value = _json(words[0], _UNREAD)
    return value if isinstance(value, dict) else _UNREAD


def _list(words: list[str]) -> Any:
    value = _json(words[0], _UNREAD)
    return value if isinstance(value, list) else words


# In the order in which a word is tried; text comes last because everything is text.
_READERS: list[tuple[Any, Callable[[list[str]], Any]]] = [
    (NoneType, _none),
    (bool, _bool),
    (int, _int),
    (float, _float),
    (dict, _dict),
    (list, _list),
]


def _article(kind: type) -> str:
    name = {"str": "text", "NoneType": "empty"}.get(kind.__name__, kind.__name__)
    return name if name in ("text", "empty") else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
