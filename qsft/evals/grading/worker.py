"""The process that grades: reads cases as JSON lines, writes a Grade as a JSON line for each.

Each answer has a limit of CPU time and the process a limit of memory: `9^{9^{9^9}}` must not take the machine with it.
CPU time, because a busy machine must not grade otherwise than an idle one. A case is one of

    {"answer": …, "gold": …}                                    an extracted mathematical answer
    {"prediction": …, "gold": …}                                a response to a mathematical problem
    {"prediction": …, "gold": …, "options": …, "rule": …}       a response to a multiple-choice question
"""

import json
import logging
import resource
import signal
import sys
from dataclasses import asdict, replace
from typing import Any

from qsft.evals.grading.grade import Grade
from qsft.evals.grading.multiple_choice import grade_choice

MEMORY_LIMIT = 4 << 30
READY = "ready"  # the first line that the process writes


class OutOfTime(BaseException):
    """The answer's time is over. Not an Exception: math-verify turns those into "no answer"."""


def grade_case(case: dict[str, Any]) -> Grade:
    """The grade of one case, without limits."""
    if "options" in case:
        return grade_choice(**case)
    from sympy.core.random import seed

    from qsft.evals.grading.math_answers import grade_answer, grade_math

    seed(0)  # sympy evaluates assumptions in random order, and in some orders the results contradict each other
    return grade_answer(**case) if "answer" in case else grade_math(**case)


def grade_in_time(case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The grade as JSON; a case that takes too long or too much memory is wrong and timed out.

    The text of a model can make sympy raise any exception. Such a response is wrong too, and the grade names the error.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        grade = grade_case(case)
    except (OutOfTime, MemoryError, RecursionError, OverflowError):
        grade = Grade(correct=False, timed_out=True)
    except Exception as error:
        grade = Grade(correct=False, failure=f"{type(error).__name__}: {error}"[:200])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return asdict(grade if "options" in case else with_canonical_answer(grade, seconds))


def with_canonical_answer(grade: Grade, seconds: float) -> Grade:
    """The grade with its answer in the notation that majority votes count.

    Correct answers are counted as one whatever their notation, so plain text is enough for them.
    """
    from qsft.evals.grading.math_answers import canonical
    from qsft.evals.grading.notation import plain_text

    if grade.answer is None:
        return grade
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        answer = plain_text(grade.answer) if grade.correct else canonical(grade.answer)
    except (OutOfTime, Exception):
        answer = plain_text(grade.answer)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return replace(grade, answer=answer)


def main() -> None:
    """Grade until the standard input ends; the argument is the time limit in seconds."""

    def out_of_time(*_: object) -> None:
        raise OutOfTime

    seconds = float(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGPROF, out_of_time)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    logging.disable(logging.WARNING)  # math-verify warns about every answer that it cannot parse
    import math_verify  # noqa: F401  (imported before the first answer's time runs)

    print(READY, flush=True)
    for line in sys.stdin:
        print(json.dumps(grade_in_time(json.loads(line), seconds)), flush=True)
