"""Extract a mathematical answer from a response and compare it with the gold answer.

Cheap exact comparisons come first: equal text, then numbers as fractions. math-verify decides the rest. Handled here is
what it misses: e-notation, tiny numbers (it rounds to six decimals), clock times that parse to infinity, text answers,
several answers in any order. Nothing here limits time or memory: worker.py runs it in a process that does.
"""

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from qsft.evals.grading.boxes import after_thinking, last_boxed
from qsft.evals.grading.exact_numbers import is_mixed_number, parse_number, same_number
from qsft.evals.grading.expressions import canonical_expression, parse, real_value, real_values, same_expressions
from qsft.evals.grading.grade import Gold, Grade
from qsft.evals.grading.notation import clean_gold, plain_text, split_answers, to_latex

LONGEST_ANSWER = 2000  # characters that are read of an answer; an answer without a box is searched at the end
LENIENT_RELATIVE_ERROR = 1e-4  # that the lenient score accepts, as the paper's grader does

_STATED_ANSWER = re.compile(r"answer\s*(?:is|:|=)\s*:?\s*(.+)", re.IGNORECASE)
_OPTION_LETTER = re.compile(r"(?:\\text(?:bf)?\s*\{)?\s*\([A-N]\)\s*\}?(?:\\[ ,;:]|\\quad|~|\s)*(?=\S)")
_INTEGER_LIST = re.compile(r"(?P<open>[(\[]?)-?\d+(?:,-?\d+)*(?P<close>[)\]]?)")


def grade_math(prediction: str, gold: Gold) -> Grade:
    """The grade of a response; see `grade_answer`."""
    answer = extract(prediction)
    return Grade(correct=False) if answer is None else grade_answer(answer, gold)


def grade_answer(answer: str, gold: Gold) -> Grade:
    """The grade of an extracted answer.

    A gold sequence holds several answers, compared as a set. `lenient` also accepts numbers within a relative error
    of 1e-4, and ×100 or /100 (a percentage written as a fraction).
    """
    if isinstance(gold, (list, tuple)):
        golds = [clean_gold(one) for one in gold]
    else:
        golds = [clean_gold(gold)]
    is_set = len(golds) > 1
    correct = same_answer(", ".join(golds), answer) or (is_set and same_set(golds, split_answers(answer)))
    lenient = correct or (not is_set and is_close(golds[0], answer))
    return Grade(correct=correct, lenient=lenient, answer=answer)


def extract(response: str) -> str | None:
    """The text of the answer that a response gives, or None.

    It is the last box, else what math-verify finds near the end, else what follows the last "answer is".
    """
    response = after_thinking(response)
    boxed = last_boxed(response)
    if boxed is not None:
        return boxed[:LONGEST_ANSWER] or None
    tail = response[-LONGEST_ANSWER:]
    parsed = parse(tail)
    if parsed and isinstance(parsed[-1], str) and parsed[-1].strip():
        return parsed[-1]
    stated = _STATED_ANSWER.findall(tail)
    if not stated:
        return None
    return stated[-1].strip().rstrip(".") or None


@lru_cache(maxsize=4096)
def same_answer(gold: str, answer: str) -> bool:
    """Whether two answers are the same text, the same mathematics, or the same set of answers."""
    gold = to_latex(gold)
    answer = to_latex(answer)
    if plain_text(gold) == plain_text(answer) and is_mixed_number(gold) == is_mixed_number(answer):
        return True
    gold_number = parse_number(gold)
    answer_number = parse_number(answer)
    if gold_number is not None and answer_number is not None:
        return same_number(gold_number, answer_number)
    if _are_different_integer_lists(plain_text(gold), plain_text(answer)):
        return False
    if same_expressions(gold, answer):
        return True
    if _OPTION_LETTER.match(answer) and not _OPTION_LETTER.match(gold):
        return same_answer(gold, _OPTION_LETTER.sub("", answer, count=1))
    golds = split_answers(gold)
    answers = split_answers(answer)
    is_list = len(golds) > 1 or len(answers) > 1
    return is_list and same_set(golds, answers)


def same_set(golds: Sequence[str], answers: Sequence[str]) -> bool:
    """Whether every answer is one of the golds and every gold is given; a repeated answer counts once."""
    remaining_golds = {plain_text(gold): gold for gold in golds}
    unmatched = {plain_text(answer): answer for answer in answers}
    if len(remaining_golds) != len(unmatched):
        return False
    for gold in remaining_golds.values():
        match = next((key for key, answer in unmatched.items() if same_answer(gold, answer)), None)
        if match is None:
            return False
        del unmatched[match]
    return True


def _are_different_integer_lists(gold: str, answer: str) -> bool:
    """Whether two answers that differ as text are lists of integers in the same brackets.

    This saves most of the time that math-verify would take for them. Without brackets 1,2 and 2,1 are one set.
    """
    gold_list = _INTEGER_LIST.fullmatch(gold)
    answer_list = _INTEGER_LIST.fullmatch(answer)
    if gold_list is None or answer_list is None:
        return False
    return gold_list["open"] != "" and gold_list.groups() == answer_list.groups()


def is_close(gold: str, answer: str) -> bool:
    """Whether two numbers agree by the lenient comparison."""
    expected = number_value(gold)
    given = number_value(answer)
    if expected is None or given is None:
        return False
    accepted = (expected, expected * 100, expected / 100)
    return any(math.isclose(given, value, rel_tol=LENIENT_RELATIVE_ERROR) for value in accepted)


def number_value(answer: str) -> float | None:
    """The value of an answer that is a real number, or None."""
    exact = parse_number(answer)
    if exact is not None:
        return real_value(exact)
    is_tuple = "," in answer and answer.lstrip()[:1] in ("(", "[")
    if is_tuple:
        return None  # a pair or an interval, the slowest answers to parse
    return next(real_values(to_latex(answer)), None)


def canonical(answer: str) -> str:
    """One notation for answers that a vote should count together: mathematics by value, the rest as plain text."""
    number = number_value(answer)
    if number is not None:
        return f"{number:.12g}"
    return canonical_expression(to_latex(answer)) or plain_text(answer)
