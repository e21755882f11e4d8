"""The reasoning path of a solution: its numbers, operators and variables in order, whatever words stand between.

RFT keeps one of several solutions with the same path, and of several paths the most different ones.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

Path = tuple[str, ...]

LONGEST_NUMBER = 100  # digits; a longer one is compared as text
# What is written in several ways, and the one way it is compared in.
_NOTATIONS = (
    (re.compile(r"\\(?:left|right|displaystyle|text|mathrm|quad|qquad|boxed|[,;:! ])|[$~]"), " "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\(?:times|cdot|ast)|[×·∗]"), "*"),
    (re.compile(r"\\div|÷"), "/"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
)
# A hyphen between words is not a minus, and a single letter is a variable only where it stands in a formula.
_TOKEN = re.compile(
    r"\d+(?:\.\d+)?"
    r"|[-+*/^<>](?=\s*(?:[\d(\\.]|[a-zA-Z](?![a-zA-Z])))"
    r"|(?<![a-zA-Z\\])[a-zA-Z](?=\s*[-+*/^<>=)])(?![a-zA-Z])"
    r"|(?<=[-+*/^<>=(\d])[a-zA-Z](?![a-zA-Z])"
    r"|(?<=[-+*/^<>=(\d]\s)[a-zA-Z](?=\s*(?:[-+*/^<>=),.]|$))"
)


def reasoning_path(text: str) -> Path:
    """The path of a solution; different notations of one number or operator are equal."""
    for notation, replacement in _NOTATIONS:
        text = notation.sub(replacement, text)
    return tuple(_canonical(token) for token in _TOKEN.findall(text))


def _canonical(token: str) -> str:
    """The token; of a number its value, so that 3.50 is 3.5."""
    if token[0].isdigit() and len(token) <= LONGEST_NUMBER:
        return str(Fraction(token))
    return token


def distance(a: Path, b: Path) -> float:
    """How different two paths are, 0 to 1: one minus the Jaccard index of their pairs of neighbors."""
    pairs_a = set(zip(("", *a), (*a, "")))
    pairs_b = set(zip(("", *b), (*b, "")))
    return 1 - len(pairs_a & pairs_b) / len(pairs_a | pairs_b)


def most_different(paths: Sequence[Path], count: int, taken: Sequence[Path] = ()) -> list[Path]:
    """At most `count` paths, each the farthest from all chosen before and from `taken`; of equal ones the first."""
    remaining = list(paths)
    chosen: list[Path] = []
    while remaining and len(chosen) < count:
        others = [*taken, *chosen]
        best = max(remaining, key=lambda path: min((distance(path, other) for other in others), default=0.0))
        remaining.remove(best)
        chosen.append(best)
    return [path for path in paths if path in chosen]
