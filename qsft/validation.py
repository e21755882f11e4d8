"""Range and choice checks for user input, and the words of messages about it. Standard library only."""

from collections.abc import Iterable
from difflib import get_close_matches
from numbers import Real


def check_range(name: str, value: float, low: float, high: float = float("inf"), *, open_low: bool = False) -> None:
    """Raise unless low ≤ value ≤ high (low < value when `open_low`); the message names the allowed range."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and (value > low if open_low else value >= low) and value <= high:
        return
    problem = "is out of range" if is_number else "is not a number"
    left = "(" if open_low else "["
    right = "∞)" if high == float("inf") else f"{high:g}]"
    raise ValueError(f"{name} = {value!r} {problem}: allowed is {left}{low:g}, {right}.")


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless `value` is one of `choices`; the message suggests a similar one."""
    if value not in choices:
        raise ValueError(
            f"{name} = {value!r} is not one of {', '.join(map(repr, choices))}.{did_you_mean(value, choices)}"
        )


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ' Did you mean …?' for a misspelled word, or an empty string."""
    close = get_close_matches(str(word), list(known), n=2)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    >>> counted(1, "process"), counted(2, "process"), counted(1200, "cache")
    ('1 process', '2 processes', '1,200 caches')
    """
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"
