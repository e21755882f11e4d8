"""Numbers in answers: read exactly, as fractions, and compared with the tolerance of math-verify."""

import re
from fractions import Fraction
from typing import Any

from qsft.evals.grading.notation import plain_text

LONGEST_NUMBER = 100  # characters
DECIMALS = 6  # to which numbers are compared, as math-verify does
TINY = 1e-3  # below it six decimals say little, so numbers are compared by their relative error,
TINY_RELATIVE_ERROR = 1e-5  # which may be this large

_MIXED_NUMBER = re.compile(r"\d\s+\d+\s*/")
_NUMBER = re.compile(
    r"(?P<sign>[+-]?)"
    r"(?:\\frac\{?(?P<numerator>\d+)\}?\{?(?P<denominator>\d+)\}?"
    r"|(?P<decimal>\d+\.?\d*|\.\d+)"
    r"(?:/(?P<divisor>\d+)|(?:e|\\(?:times|cdot)10\^)\{?(?P<exponent>[+-]?\d{1,4})\}?)?)"
)


def parse_number(text: str) -> Fraction | None:
    """The value of an integer, decimal, fraction or number in e-notation; None for anything less simple.

    >>> parse_number(r"4.5 \\times 10^{2}"), parse_number("x + 1")
    (Fraction(450, 1), None)
    """
    if len(text) > LONGEST_NUMBER or is_mixed_number(text):
        return None
    found = _NUMBER.fullmatch(plain_text(text))
    if found is None:
        return None
    numerator = Fraction(found["numerator"] or found["decimal"])
    denominator = int(found["denominator"] or found["divisor"] or 1)
    if denominator == 0:
        return None
    value = numerator / denominator * Fraction(10) ** int(found["exponent"] or 0)
    return -value if found["sign"] == "-" else value


def is_mixed_number(text: str) -> bool:
    """Whether a text contains a number such as 2 1/3, which must not be read as 21/3."""
    return _MIXED_NUMBER.search(text) is not None


def same_number(gold: Fraction | float, answer: Fraction | float) -> bool:
    """Whether two numbers agree to six decimals; those below 1e-3 to a relative error of 1e-5."""
    sizes: list[Any] = [abs(gold), abs(answer)]
    if max(sizes) < TINY:
        return abs(gold - answer) <= TINY_RELATIVE_ERROR * min(sizes)
    return round(gold, DECIMALS) == round(answer, DECIMALS)
