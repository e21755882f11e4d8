r"""Notations of an answer: gold answers as data sets write them, Unicode as LaTeX, plain text, lists of answers."""

import re
import unicodedata
from functools import lru_cache

from qsft.evals.grading.latex import TEXT_WRAPPERS, unwrap

ANSWER_WRAPPERS = (*TEXT_WRAPPERS, "operatorname")
FRACTION_SLASH = "\u2044"  # ½ decomposes to 1⁄2 with this character

_SPACING = re.compile(r"\\[!,;: ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-zA-Z])|~|\$")
_LIST_WORDS = re.compile(r"\\text\{\s*+(?:and|or)\s*+\}|\band\b|\bor\b|;", re.IGNORECASE)
_ROOT = re.compile(r"√\s*+(?:\((?P<round>[^()]*)\)|\{(?P<curly>[^{}]*)\}|(?P<bare>\d+(?:\.\d+)?|[a-zA-Z]))")
_LATEX_OF = {
    "°": r"^\circ",
    "π": r"\pi",
    "∞": r"\infty",
    "−": "-",
    "–": "-",
    "×": r"\times ",
    "·": r"\cdot ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "∪": r"\cup ",
    "∈": r"\in ",
    "≠": r"\ne ",
}


def clean_gold(gold: str | float) -> str:
    """The gold answer as text: no surrounding $, no final full stop, 27.0 as 27."""
    if isinstance(gold, float) and gold.is_integer():
        return str(int(gold))
    text = str(gold).strip().rstrip(".").strip()
    is_formula = text.count("$") % 2 == 0 and r"\$" not in text
    return text.replace("$", "").strip() if is_formula else text


def to_latex(text: str) -> str:
    """The text with Unicode characters such as ½, √2, 90° and x ≥ 2 in LaTeX notation."""
    if text.isascii():
        return text
    latex = "".join(_fraction_to_latex(character) or _LATEX_OF.get(character, character) for character in text)
    return _ROOT.sub(_root_to_latex, latex)


def _fraction_to_latex(character: str) -> str | None:
    numerator, slash, denominator = unicodedata.normalize("NFKC", character).partition(FRACTION_SLASH)
    if slash and numerator.isdigit() and denominator.isdigit():
        return rf"\frac{{{numerator}}}{{{denominator}}}"
    return None


def _root_to_latex(root: re.Match[str]) -> str:
    radicand = root["round"] or root["curly"] or root["bare"] or ""
    return rf"\sqrt{{{radicand}}}"


@lru_cache(maxsize=4096)
def plain_text(text: str) -> str:
    """The text without LaTeX wrappers, spacing and case: equal for two notations of one word."""
    text = unwrap(_SPACING.sub("", text), ANSWER_WRAPPERS)
    text = text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace(r"\%", "%")
    return re.sub(r"\s+", "", text).rstrip(".").casefold()


def split_answers(text: str) -> list[str]:
    r"""The answers of a list, split at commas, semicolons, "and" and "or" outside of every bracket.

    >>> split_answers(r"\{(1,2), 3\}")
    ['(1,2)', '3']
    """
    text = text.strip().strip("$")
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    text = _LIST_WORDS.sub(",", text)
    parts = []
    depth = 0
    start = 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]
