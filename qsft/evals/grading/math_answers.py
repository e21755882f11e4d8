"""Extract a mathematical answer from a response and compare it with the gold answer.

Cheap exact comparisons come first: equal text, then numbers as fractions. math-verify decides the rest. Handled here is
what it misses: e-notation, tiny numbers (it rounds to six decimals), clock times that parse to infinity, text answers,
several answers in any order. Nothing here limits time or memory: worker.py runs it in a process that does.
"""

import math
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from qsft.evals.grading.boxes import after_thinking, last_boxed
from qsft.evals.grading.grade import Gold, Grade
from qsft.evals.grading.latex import TEXT_WRAPPERS, unwrap

LONGEST_ANSWER = 2000  # characters that are read of an answer; an answer without a box stands at the end
LENIENT = 1e-4  # relative error that the lenient score accepts, as in the paper's grader
TINY = 1e-3  # smaller numbers are compared by their relative error,
TINY_ERROR = 1e-5  # which may be this large;
DECIMALS = 6  # larger ones by this many decimals, as math-verify does
ANSWER_WRAPPERS = (*TEXT_WRAPPERS, "operatorname")

_STATED = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*(.+)", re.IGNORECASE)
_E_NOTATION = re.compile(r"(?<![\w.])([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)[eE]([+-]?\d+)(?!\w)")
_SPACING = re.compile(r"\\[!,;: ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-zA-Z])|~|\$")
_INTEGERS = re.compile(r"(\(|\[|)-?\d+(?:,-?\d+)*(\)|\]|)")
_AND = re.compile(r"\\text\{\s*+(?:and|or)\s*+\}|\band\b|\bor\b|;", re.IGNORECASE)
_OPTION = re.compile(r"(?:\\text(?:bf)?\s*\{)?\s*\([A-N]\)\s*\}?(?:\\[ ,;:]|\\quad|~|\s)*(?=\S)")
_MIXED = re.compile(r"\d\s+\d+\s*/")  # 2 1/3 is not 21/3
_NUMBER = re.compile(
    r"([+-]?)(?:\\frac\{?(?P<over>\d+)\}?\{?(?P<under>\d+)\}?|(?P<number>\d+\.?\d*|\.\d+)"
    r"(?:/(?P<divisor>\d+)|(?:e|\\(?:times|cdot)10\^)\{?(?P<power>[+-]?\d{1,4})\}?)?)"
)
_SIGNS = {"°": r"^\circ", "π": r"\pi", "∞": r"\infty", "−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ",
          "≤": r"\le ", "≥": r"\ge ", "∪": r"\cup ", "∈": r"\in ", "≠": r"\ne "}  # fmt: skip
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|\{([^{}]*)\}|(\d+(?:\.\d+)?|[a-zA-Z]))")


def grade_math(prediction: str, gold: Gold) -> Grade:
    """The grade of a response; see `grade_answer`."""
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
    stated = _STATED.findall(tail)
    return stated[-1].strip().rstrip(".") or None if stated else None


def clean_gold(gold: str | float) -> str:
    """The gold answer as text: no surrounding $, no final full stop, 27.0 as 27."""
    if isinstance(gold, float) and gold.is_integer():
        return str(int(gold))
    text = str(gold).strip().rstrip(".").strip()
    is_formula = text.count("$") % 2 == 0 and r"\$" not in text
    return text.replace("$", "").strip() if is_formula else text


@lru_cache(maxsize=4096)
def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers are the same text, the same mathematics, or the same set of answers."""
    gold = in_latex(gold)
    answer = in_latex(answer)
    if plain(gold) == plain(answer) and bool(_MIXED.search(gold)) == bool(_MIXED.search(answer)):
        return True
    gold_number = exact_number(gold)
    answer_number = exact_number(answer)
    if gold_number is not None and answer_number is not None:
        return same_number(gold_number, answer_number)
    if _other_integers(plain(gold), plain(answer)):
        return False
    if _verify(gold, answer):
        return True
    without_letter = _OPTION.sub("", answer, count=1) if _OPTION.match(answer) else answer
    if without_letter != answer and not _OPTION.match(gold):
        return same_answer(gold, without_letter)
    golds = split_answers(gold)
    answers = split_answers(answer)
    return max(len(golds), len(answers)) > 1 and _same_set(golds, answers)


def in_latex(text: str) -> str:
    """The text with Unicode characters such as ½, √2, 90° and x ≥ 2 in LaTeX notation."""
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
    text = unwrap(_SPACING.sub("", text), ANSWER_WRAPPERS)
    text = text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace(r"\%", "%")
    return re.sub(r"\s+", "", text).rstrip(".").casefold()


def exact_number(text: str) -> Fraction | None:
    """The value of an integer, decimal, fraction or number in e-notation; None for anything less simple."""
    if len(text) > 100 or _MIXED.search(text):
        return None
    found = _NUMBER.fullmatch(plain(text))
    if found is None:
        return None
    denominators = [found[name] for name in ("under", "divisor") if found[name]]
    if any(int(denominator) == 0 for denominator in denominators):
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
    text = _AND.sub(",", text)
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


def _same_set(golds: Sequence[str], answers: Sequence[str]) -> bool:
    """Whether every answer is one of the golds and every gold is given; a repeated root is the same set."""
    distinct_golds = list({plain(one): one for one in golds}.values())
    unmatched = list({plain(one): one for one in answers}.values())
    if len(distinct_golds) != len(unmatched):
        return False
    for gold in distinct_golds:
        match = next((one for one in unmatched if same_answer(gold, one)), None)
        if match is None:
            return False
        unmatched.remove(match)
    return True


def _other_integers(gold: str, answer: str) -> bool:
    """Whether both are lists of integers in the same brackets, and so differ as they are written: 100 × faster."""
    gold_list = _INTEGERS.fullmatch(gold)
    answer_list = _INTEGERS.fullmatch(answer)
    if gold_list is None or answer_list is None or gold_list.groups() != answer_list.groups():
        return False
    return bool(gold_list[1])  # without brackets 1,2 and 2,1 are one set


def _verify(gold: str, answer: str) -> bool:
    from math_verify import verify

    golds = _expressions(gold)
    answers = _expressions(answer)
    if not golds or not answers:
        return False
    gold_value = _float(golds[0])
    answer_value = _float(answers[0])
    if gold_value is not None and answer_value is not None and max(abs(gold_value), abs(answer_value)) < TINY:
        return same_number(gold_value, answer_value)
    # verify() is not symmetric: the gold comes first; x > 2 is the interval (2, ∞) on either side.
    return bool(verify(golds, answers, timeout_seconds=None, allow_set_relation_comp=True))


def _expressions(answer: str) -> list[Any]:
    """The parsed answer; nothing when it is undefined: 6:00 parses to 6/0, and so does every other hour."""
    import sympy

    answer = _E_NOTATION.sub(r"\1 \\times 10^{\2}", answer)  # math-verify does not read 4.5e33 as a number
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
    expected = _number(gold)
    given = _number(answer)
    if expected is None or given is None:
        return False
    return any(math.isclose(given, scaled, rel_tol=LENIENT) for scaled in (expected, expected * 100, expected / 100))


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
