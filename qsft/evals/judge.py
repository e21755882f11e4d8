"""The grading process: one JSON line in, one Grade as a JSON line out (started by grade.Judges).

Each answer has a time limit and the process a memory limit, for `9^{9^{9^9}}` must not take the machine with it. The
limit is CPU time: a busy machine must not grade otherwise than an idle one.
"""

import json
import logging
import resource
import signal
import sys
from dataclasses import asdict, replace
from typing import Any

from qsft.evals.grade import Grade

MEMORY_LIMIT = 4 << 30


class OutOfTime(BaseException):
    """The answer's time is over. Not an Exception: math-verify turns those into "no answer"."""


def judge(case: dict[str, Any]) -> Grade:
    """The grade of one case: {answer or prediction, gold, options, rule}."""
    if case["options"]:
        from qsft.evals.choice import grade_choice

        return grade_choice(case["prediction"], case["gold"], case["options"], case["rule"] or "boxed")
    from sympy.core.random import seed

    from qsft.evals.answers import grade_answer, grade_math

    seed(0)  # sympy asks its assumptions in random order, and in some orders it contradicts itself
    if case.get("answer") is not None:
        return grade_answer(case["answer"], case["gold"])
    return grade_math(case["prediction"], case["gold"])


def judge_in_time(case: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The grade as a record; a case that takes too long or too much memory is wrong and timed out.

    What a model writes makes sympy raise anything, a ValueError among it: a wrong answer too, with the failure named.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        graded = judge(case)
    except (OutOfTime, MemoryError, RecursionError, OverflowError):
        graded = Grade(correct=False, timed_out=True)
    except Exception as error:
        graded = Grade(correct=False, failure=f"{type(error).__name__}: {error}"[:200])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return asdict(graded if case["options"] else in_one_writing(graded, seconds))


def in_one_writing(graded: Grade, seconds: float) -> Grade:
    """The answer as votes count it. Right ones vote together anyway; the grade itself stands, whatever happens here."""
    from qsft.evals.answers import canonical, plain

    if graded.answer is None:
        return graded
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return replace(graded, answer=plain(graded.answer) if graded.correct else canonical(graded.answer))
    except (OutOfTime, Exception):
        return replace(graded, answer=plain(graded.answer))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _out_of_time(*_: object) -> None:
    raise OutOfTime


def main() -> None:
    """Grade lines of stdin until it closes."""
    seconds = float(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    logging.disable(logging.WARNING)  # math-verify warns about every answer it cannot parse
    import math_verify  # noqa: F401  (paid once, before the first answer's time runs)

    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(judge_in_time(json.loads(line), seconds)), flush=True)


if __name__ == "__main__":
    main()
