"""Reading a solution: which answer it gives, and where it first goes wrong."""

from qsft.demo.vocabulary import ANSWERS, EOS, EQUALS, NUMBERS, OPENERS, TIMES
from qsft.demo.world import ClockProblem, fact

ADDING, MULTIPLYING, COPYING, FORM = ERRORS = ("+/−", "×", "copying", "form")
_OPENERS = frozenset(word for words in OPENERS for word in words)


def given_answer(words: list[str]) -> str | None:
    """The number after an answer word right before the first <eos>; None for anything else.

    >>> given_answer("first +5 7 = 2 ans 2 <eos>".split())
    '2'
    """
    if EOS not in words:
        return None
    match words[: words.index(EOS)]:
        case [*_, word, number] if word in ANSWERS and number in NUMBERS:
            return number
    return None


def first_error(problem: ClockProblem, words: list[str]) -> str | None:
    """The kind of the first wrong word, or None for a faultless solution.

    A wrong result is `+/−` or `×` by its operation; a wrong operation, operand or final answer is `copying`; anything
    that is not a chain of thought is `form`. A result is judged by the operand it was computed from.
    """
    value, at = str(problem.start), 0
    for operation in problem.operations:
        match words[at : at + 5]:
            case [opener, did, operand, equals, result]:
                error = _step_error(operation, value, opener, did, operand, equals, result)
            case _:
                return FORM
        if error:
            return error
        value, at = result, at + 5
    match words[at : at + 3]:
        case [answer_word, number, end] if answer_word in ANSWERS and number in NUMBERS and end == EOS:
            return None if number == value else COPYING
    return FORM


def _step_error(
    operation: str, value: str, opener: str, did: str, operand: str, equals: str, result: str
) -> str | None:
    if opener not in _OPENERS:
        return FORM
    if (did, operand) != (operation, value):
        return COPYING
    if equals not in EQUALS or result not in NUMBERS:
        return FORM
    if int(result) == fact(operation, int(value)):
        return None
    return MULTIPLYING if operation[0] == TIMES else ADDING
