"""Is this response's answer the gold answer? Extraction and comparison for mathematics, one pair at a time.

Cheap exact comparisons come first: equal text, then numbers as fractions. What is left math-verify decides; around
it stands what it misses: e-notation, tiny numbers (it rounds to six decimals), clock times that parse to infinity, text
answers, several answers in any order. Nothing here limits time or memory: judge.py runs it in a process that does.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qsft.evals.grade import LONGEST_ANSWER, Gold, Grade, after_thinking, last_boxed

LENIENT = 1e-4  # relative error that the lenient score accepts, as in the paper's grader
TINY, TINY_ERROR = 1e-3, 1e-5  # below that size numbers are compared by their relative error
DECIMALS = 6  # above it by this many decimals, as math-verify does

_SAID = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*(.+)", re.IGNORECASE)
_E_NOTATION = re.compile(r"(?<![\w.])([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)[eE]([+-]?\d+)(?!\w)")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[!,;: ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-zA-Z])|~|\$")
_INTEGERS = re.compile(r"(\(|\[|)-?\d+(?:,-?\d+)*(\)|\]|)")
_AND = re.compile(r"\s*(?:\\text\{\s*(?:and|or)\s*\}|\band\b|\bor\b|;)\s*", re.IGNORECASE)
_OPTION = re.compile(r"(?:\\text(?:bf)?\s*\{)?\s*\([A-N]\)\s*\}?(?:\\[ ,;:]|\\quad|~|\s)*(?=\S)")
_MIXED = re.compile(r"\d\s+\d+\s*/")  # 2 1/3 is no 21/3
_NUMBER = re.compile(
    r"([+-]?)(?:\\frac\{?(?P<over>\d+)\}?\{?(?P<under>\d+)\}?|(?P<number>\d+\.?\d*|\.\d+)"
    r"(?:/(?P<divisor>\d+)|(?:e|\\(?:times|cdot)10\^)\{?(?P<power>[+-]?\d{1,4})\}?)?)"
)
_SIGNS = {"°": r"^\circ", "π": r"\pi", "∞": r"\infty", "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ",
          "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "∈": r"\in ", "≠": r"\ne "}  # fmt: skip
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[a-zA-Z]))")


def grade_math(prediction: str, gold: Gold) -> Grade:
    answer = extract(prediction)
    return Grade(correct=False) if answer is None else grade_answer(answer, gold)


def grade_answer(answer: str, gold: Gold) -> Grade:
    """The grade of an extracted answer.

    A gold sequence holds several answers, compared as a set. `lenient` also accepts numbers within a relative error
    of 1e-4, and ×100 or /100 (a percentage written as a fraction).
    """
    golds = [clean_gold(one) for one in gold] if isinstance(gold, (list, tuple)) else [clean_gold(gold)]
    correct = same_answer(", ".join(golds), answer) or (len(golds) > 1 and _same_set(golds, split_answers(answer)))
    lenient = correct or (len(golds) == 1 and _close(golds[0], answer))
    return Grade(correct=correct, lenient=lenient, answer=answer)


def extract(response: str) -> str | None:
    """The text of the answer a response gives, or None: the last box, else what math-verify finds near the end."""
    response = after_thinking(response)
    boxed = last_boxed(response)
    if boxed is not None:
        return boxed[:LONGEST_ANSWER] or None
    tail = response[-LONGEST_ANSWER:]
    parsed = _parse(tail)
    if parsed and isinstance(parsed[-1], str) and parsed[-1].strip():
        return parsed[-1]
    said = _SAID.findall(tail)
    return said[-1].strip().rstrip(".")[:LONGEST_ANSWER] or None if said else None


def clean_gold(gold: str | float) -> str:
    """The gold answer as text: no surrounding $, no final full stop, 27.0 as 27."""
    if isinstance(gold, float) and gold.is_integer():
        return str(int(gold))
    text = str(gold).strip().rstrip(".").strip()
    return text.replace("$", "").strip() if text.count("$") % 2 == 0 and r"\$" not in text else text


@lru_cache(maxsize=4096)
def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers are the same text, the same mathematics, or the same set of answers."""
    gold, answer = in_latex(gold), in_latex(answer)
    if plain(gold) == plain(answer) and bool(_MIXED.search(gold)) == bool(_MIXED.search(answer)):
        return True
    numbers = exact_number(gold), exact_number(answer)
    if numbers[0] is not None and numbers[1] is not None:
        return same_number(numbers[0], numbers[1])
    if _other_integers(plain(gold), plain(answer)):
        return False
    if _verify(gold, answer):
        return True
    bare = _OPTION.sub("", answer, count=1) if _OPTION.match(answer) else answer
    if bare != answer and not _OPTION.match(gold):
        return same_answer(gold, bare)
    golds, answers = split_answers(gold), split_answers(answer)
    return max(len(golds), len(answers)) > 1 and _same_set(golds, answers)


def in_latex(text: str) -> str:
    """The text with signs of Unicode as LaTeX writes them: ½ √2 90° x ≥ 2."""
    if text.isascii():
        return text
    text = "".join(_fraction(sign) or _SIGNS.get(sign, sign) for sign in text)
    return _ROOT.sub(lambda found: rf"\sqrt{{{next(filter(None, found.groups()))}}}", text)


def _fraction(sign: str) -> str | None:
    over, slash, under = unicodedata.normalize("NFKC", sign).partition("\u2044")
    return rf"\frac{{{over}}}{{{under}}}" if slash and over.isdigit() and under.isdigit() else None


@lru_cache(maxsize=4096)
def plain(text: str) -> str:
    """The text without LaTeX wrappers, spacing and case: what two notations of one word share."""
    text = _SPACING.sub("", text)
    while (unwrapped := _WRAPPER.sub(r"\1", text)) != text:
        text = unwrapped
    text = text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace(r"\%", "%")
    return re.sub(r"\s+", "", text).rstrip(".").casefold()


def exact_number(text: str) -> Fraction | None:
    """The value of an integer, decimal, fraction or number in e-notation; None for anything less simple."""
    found = None if len(text) > 100 or _MIXED.search(text) else _NUMBER.fullmatch(plain(text))
    if found is None or any(found[name] and not int(found[name]) for name in ("under", "divisor")):
        return None
    size = Fraction(int(found["over"]), int(found["under"])) if found["over"] else Fraction(found["number"])
    size = size / int(found["divisor"] or 1) * Fraction(10) ** int(found["power"] or 0)
    return -size if found[1] == "-" else size


def same_number(gold: Fraction | float, answer: Fraction | float) -> bool:
    """Whether two numbers agree to six decimals, or below 1e-3 (where that says little) to a relative 1e-5."""
    sizes: list[Any] = [abs(gold), abs(answer)]
    if max(sizes) < TINY:
        return abs(gold - answer) <= TINY_ERROR * min(sizes)
    return round(gold, DECIMALS) == round(answer, DECIMALS)


def split_answers(text: str) -> list[str]:
    """The answers of a list, split at commas and words outside every bracket; outer set braces are dropped."""
    text = text.strip().strip("$")
    if text.startswith(r"\{") and text.endswith(r"\}"):
        text = text[2:-2]
    parts, depth, start = [], 0, 0
    text = _AND.sub(",", text)
    for at, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [part for part in [*parts, text[start:].strip()] if part]


def _same_set(golds: Sequence[str], answers: Sequence[str]) -> bool:
    """Whether every answer is one of the golds and every gold is given; a repeated root is the same set."""
    golds, left = (list({plain(one): one for one in some}.values()) for some in (golds, answers))
    if len(golds) != len(left):
        return False
    for gold in golds:
        match = next((one for one in left if same_answer(gold, one)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _other_integers(gold: str, answer: str) -> bool:
    """Whether both are lists of integers in the same brackets, and so differ as they are written: 100 × faster."""
    both = _INTEGERS.fullmatch(gold), _INTEGERS.fullmatch(answer)
    if both[0] is None or both[1] is None or both[0].groups() != both[1].groups():
        return False
    return bool(both[0][1])  # without brackets 1,2 and 2,1 are one set


def _verify(gold: str, answer: str) -> bool:
    from math_verify import verify

    golds, answers = _expressions(gold), _expressions(answer)
    if not golds or not answers:
        return False
    sizes = _float(golds[0]), _float(answers[0])
    if sizes[0] is not None and sizes[1] is not None and abs(sizes[0]) < TINY and abs(sizes[1]) < TINY:
        return same_number(sizes[0], sizes[1])
    # verify() is not symmetric: the gold comes first; x > 2 is the interval (2, ∞) on either side.
    return bool(verify(golds, answers, timeout_seconds=None, allow_set_relation_comp=True))


def _expressions(answer: str) -> list[Any]:
    """The parsed answer; nothing when it is undefined: 6:00 parses to 6/0, and so does every other hour."""
    import sympy

    answer = _E_NOTATION.sub(r"\1 \\times 10^{\2}", answer)  # 4.5e33 is no number to math-verify
    parsed = _parse(r"\boxed{" + answer + "}")
    undefined = any(isinstance(one, sympy.Basic) and one.has(sympy.zoo, sympy.nan) for one in parsed)
    return [] if undefined else [one for one in parsed if not isinstance(one, str)]


@lru_cache(maxsize=4096)
def _parse(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    configs = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    return list(parse(text, configs, parsing_timeout=None))


def _number(answer: str) -> float | None:
    exact = exact_number(answer)
    if exact is not None:
        return _float(exact)
    if "," in answer and answer.lstrip()[:1] in ("(", "["):
        return None  # a pair or an interval, the slowest things to parse
    return next((number for number in map(_float, _expressions(in_latex(answer))) if number is not None), None)


def _float(expression: Any) -> float | None:
    """The value of a real number; None for anything else and for what sympy calls real but cannot evaluate: log_1 5."""
    try:
        real = isinstance(expression, Fraction) or (
            getattr(expression, "is_number", False) and getattr(expression, "is_real", False)
        )
        number = float(expression) if real else math.nan
        return number if math.isfinite(number) else None  # 10^400 and 10^500 are both inf
    except (ArithmeticError, TypeError, ValueError):
        return None


def _close(gold: str, answer: str) -> bool:
    wanted, given = _number(gold), _number(answer)
    if wanted is None or given is None:
        return False
    return any(math.isclose(given, scaled, rel_tol=LENIENT) for scaled in (wanted, wanted * 100, wanted / 100))


def canonical(answer: str) -> str:
    """One notation for answers that a vote should count together: mathematics by value, the rest as plain text."""
    import sympy

    number = _number(answer)
    if number is not None:
        return f"{number:.12g}"
    for expression in _expressions(in_latex(answer)):
        if isinstance(expression, sympy.Expr) and expression.free_symbols:
            return str(sympy.expand(expression))
        if isinstance(expression, (sympy.Set, sympy.Tuple, sympy.MatrixBase)):
            return str(expression.evalf(12))
    return plain(answer)
