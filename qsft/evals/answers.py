"""Is this response's answer the gold answer? Extraction and comparison for mathematics, one pair at a time.

math-verify decides; around it stands what it misses: e-notation, clock times that parse to infinity, text answers,
several answers in any order. Nothing here limits time or memory: judge.py runs it in a process that does.
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

from qsft.evals.grade import Gold, Grade

TAIL = 2000  # characters that are searched when nothing is boxed: an answer stands at the end
LONGEST_ANSWER = 2000  # a longer "answer" is garbage; parsing it would only cost time
REL_TOLERANCE = 1e-4  # of the lenient score, as in the paper's grader

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN_BOXES = re.compile(r"[\s$,;.\\]*(?:and|or|quad|text\{\s*(?:and|or)\s*\})?[\s$,;\\]*", re.IGNORECASE)
_SAID = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*(.+)", re.IGNORECASE)
_E_NOTATION = re.compile(r"(?<![\w.])([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)[eE]([+-]?\d+)(?!\w)")
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\[!,;: ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-zA-Z])|~|\$")
_INTEGERS = re.compile(r"-?[1-9]\d*|[(\[]-?\d+(?:,-?\d+)+[)\]]")
_AND = re.compile(r"\s*(?:\\text\{\s*(?:and|or)\s*\}|\band\b|\bor\b|;)\s*", re.IGNORECASE)


def grade_math(prediction: str, gold: Gold) -> Grade:
    """The grade of a response: its boxed (else last stated) answer against the gold answer.

    A gold sequence holds several answers, compared as a set. `lenient` also accepts numbers within a relative error
    of 1e-4, and ×100 or /100 (a percentage written as a fraction).
    """
    answer = extract(prediction)
    if answer is None:
        return Grade(correct=False)
    golds = [clean_gold(one) for one in gold] if isinstance(gold, (list, tuple)) else [clean_gold(gold)]
    correct = same_answer(", ".join(golds), answer) or (len(golds) > 1 and _same_set(golds, split_answers(answer)))
    lenient = correct or (len(golds) == 1 and _close(golds[0], answer))
    return Grade(correct=correct, lenient=lenient, answer=_canonical(answer))


def extract(response: str) -> str | None:
    """The text of the answer a response gives, or None: the last box, else what math-verify finds near the end.

    >>> extract(r"so \\boxed{\\frac{1}{2}}.")
    '\\\\frac{1}{2}'
    """
    boxed = _last_boxes(response)
    if boxed is not None:
        return boxed[:LONGEST_ANSWER] or None
    tail = response[-TAIL:]
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
    if plain(gold) == plain(answer):
        return True
    if _INTEGERS.fullmatch(plain(gold)) and _INTEGERS.fullmatch(plain(answer)):
        return False  # as math-verify would say after parsing both, 100 times slower for pairs like (3,5)
    if _verify(gold, answer):
        return True
    golds = split_answers(gold)
    return len(golds) > 1 and _same_set(golds, split_answers(answer))


def plain(text: str) -> str:
    """The text without LaTeX wrappers, spacing and case: what two writings of one word share."""
    text = _SPACING.sub("", text)
    while (unwrapped := _WRAPPER.sub(r"\1", text)) != text:
        text = unwrapped
    text = text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace(r"\%", "%")
    return re.sub(r"\s+", "", text).rstrip(".").casefold()


def scientific(text: str) -> str:
    r"""The text with 4.5e33 written as 4.5 \times 10^{33}, which math-verify reads as a number."""
    return _E_NOTATION.sub(r"\1 \\times 10^{\2}", text)


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
    if len(golds) != len(answers):
        return False
    left = list(answers)
    for gold in golds:
        match = next((one for one in left if plain(gold) == plain(one) or _verify(gold, one)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _last_boxes(response: str) -> str | None:
    """What the last \\boxed holds; boxes that only "and", "or" or a comma separates are one answer."""
    boxes = list(_boxes(response))
    if not boxes:
        return None
    answers = [boxes[-1]]
    for box in reversed(boxes[:-1]):
        if not _BETWEEN_BOXES.fullmatch(response[box[1] : answers[0][0]]):
            break
        answers.insert(0, box)
    return ", ".join(dict.fromkeys(text for _, _, text in answers))


def _boxes(response: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and content of each outermost box; nested boxes are opened, an unclosed one ends with its line."""
    at = 0
    while found := _BOX.search(response, at):
        end = _closing(response, found.end())
        if end is None:
            line = response[found.end() :].split("\n", 1)[0]
            at = found.end() + len(line)
            content = line.rstrip(" .$")
            content += "}" * max(0, content.count("{") - content.count("}"))
        else:
            at, content = end + 1, response[found.end() : end]
        inner = list(_boxes(content))
        yield found.start(), at, inner[-1][2] if inner else content.strip()


def _closing(text: str, start: int) -> int | None:
    depth = 1
    for brace in re.finditer(r"(?<!\\)[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return start + brace.start()
    return None


def _verify(gold: str, answer: str) -> bool:
    from math_verify import verify

    golds, answers = _expressions(gold), _expressions(answer)
    # verify() is not symmetric: the gold comes first.
    return bool(golds and answers and verify(golds, answers, timeout_seconds=None))


def _expressions(answer: str) -> list[Any]:
    """The parsed answer; nothing when it is undefined: 6:00 parses to 6/0, and so does every other hour."""
    import sympy

    parsed = _parse(r"\boxed{" + scientific(answer) + "}")
    undefined = any(isinstance(one, sympy.Basic) and one.has(sympy.zoo, sympy.nan) for one in parsed)
    return [] if undefined else [one for one in parsed if not isinstance(one, str)]


@lru_cache(maxsize=4096)
def _parse(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    configs = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
    return list(parse(text, configs, parsing_timeout=None))


def _number(answer: str) -> float | None:
    """The real number an answer stands for, or None."""
    if "," in answer and answer.lstrip()[:1] in ("(", "["):
        return None  # a pair or an interval, the slowest things to parse
    return next((number for number in map(_float, _expressions(answer)) if number is not None), None)


def _float(expression: Any) -> float | None:
    """The value of a real number; None for anything else and for what sympy calls real but cannot evaluate: log_1 5."""
    try:
        real = getattr(expression, "is_number", False) and getattr(expression, "is_real", False)
        number = float(expression) if real else math.nan
        return number if math.isfinite(number) else None  # 10^400 and 10^500 are both inf
    except (ArithmeticError, TypeError, ValueError):
        return None


def _close(gold: str, answer: str) -> bool:
    wanted, given = _number(gold), _number(answer)
    if wanted is None or given is None:
        return False
    return any(math.isclose(given, scaled, rel_tol=REL_TOLERANCE) for scaled in (wanted, wanted * 100, wanted / 100))


def _canonical(answer: str) -> str:
    """One writing for answers that a majority vote should count together: numbers by value, the rest as plain text."""
    number = _number(answer)
    return plain(answer) if number is None else f"{number:.12g}"
