"""The reasoning path of a solution: its numbers, operators and variables in order, whatever words stand between.

Two solutions with one path calculate the same; RFT keeps one of them, and of several paths the most different ones.
"""

import re
from collections.abc import Sequence

Path = tuple[str, ...]

_WRITINGS = (
    (re.compile(r"\\(?:left|right|displaystyle|text|mathrm|quad|qquad|boxed|[,;:! ])|[$~]"), " "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\(?:times|cdot|ast)|[×·∗]"), "*"),
    (re.compile(r"\\div|÷"), "/"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
)
# A hyphen between words is no minus, and a lone letter is a variable only where it stands in a formula.
_TOKEN = re.compile(
    r"\d+(?:\.\d+)?"
    r"|[-+*/^<>](?=\s*(?:[\d(\\.]|[a-zA-Z](?![a-zA-Z])))"
    r"|(?<![a-zA-Z\\])[a-zA-Z](?=\s*[-+*/^<>=)])(?![a-zA-Z])"
    r"|(?<=[-+*/^<>=(\d])[a-zA-Z](?![a-zA-Z])"
    r"|(?<=[-+*/^<>=(\d]\s)[a-zA-Z](?=\s*(?:[-+*/^<>=),.]|$))"
)


def reasoning_path(text: str) -> Path:
    r"""The path of a solution; writings of one number or operator are one.

    >>> reasoning_path(r"So $3 \times 2.50 = 7.5$ dollars.") == reasoning_path("3*2.5 makes 7.50, well-known.")
    True
    """
    for writing, plain in _WRITINGS:
        text = writing.sub(plain, text)
    return tuple(_number(token) for token in _TOKEN.findall(text))


def distance(a: Path, b: Path) -> float:
    """How different two paths are, 0 to 1: the share of neighbouring pairs that only one of them has (Jaccard)."""
    pairs = [set(zip(("", *path), (*path, ""))) for path in (a, b)]
    return 1 - len(pairs[0] & pairs[1]) / len(pairs[0] | pairs[1])


def most_different(paths: Sequence[Path], count: int, taken: Sequence[Path] = ()) -> list[Path]:
    """`count` of different paths, each next one the farthest from all chosen and `taken` before; ties to the first."""
    left, chosen = list(paths), list[Path]()
    while left and len(chosen) < count:
        best = max(left, key=lambda one: min((distance(one, other) for other in (*taken, *chosen)), default=0.0))
        left.remove(best)
        chosen.append(best)
    return [path for path in paths if path in chosen]


def _number(token: str) -> str:
    """3.50 as 3.5, 007 as 7; anything else as it is."""
    if not token[0].isdigit():
        return token
    whole, _, fraction = token.partition(".")
    fraction = fraction.rstrip("0")
    return f"{int(whole)}.{fraction}" if fraction else str(int(whole))
