"""Both ends of grading: processes that can be stopped, since sympy can be sent into a loop that no signal interrupts.

`Judges` writes cases as JSON lines to `python -m qsft.evals.judge`, which writes a Grade as a JSON line for each, so
neither cares whether the caller is a notebook, a thread or an unguarded script. Each answer has a time limit and the
process a memory limit, for `9^{9^{9^9}}` must not take the machine with it. The limit is CPU time: a busy machine must
not grade otherwise than an idle one.
"""

import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from qsft.evals.grade import LONGEST_ANSWER, Gold, Grade, after_thinking, find_rule, grade_choice, last_boxed

TIME_LIMIT = 5.0  # seconds of CPU for one answer
PATIENCE = 5.0  # times that limit by the clock, on a busy machine
START_LIMIT = 120.0  # seconds for a judge to import sympy on a busy machine
MEMORY_LIMIT = 4 << 30
MOST_JUDGES = 16
MOST_KNOWN = 100_000  # grades remembered


@lru_cache(maxsize=1)
def single_judge() -> "Judges":
    return Judges(1)


class Judges:
    """Grading processes; `submit` returns a future Grade. An answer past the time limit is wrong and `timed_out`.

    As many as this process may use CPUs, at most 16, each started when there is work for it. Of n samples many agree:
    equal pairs of gold and boxed answer are graded once.
    """

    def __init__(self, processes: int | None = None, time_limit: float = TIME_LIMIT) -> None:
        mine = threading.local()  # each thread has a judge; one that is idle works before another is started
        judges: list[_Judge] = []

        def start() -> None:
            mine.judge = _Judge(time_limit)
            judges.append(mine.judge)

        def stop() -> None:
            for judge in judges:
                judge.stop()

        # The CPUs that this process may use: a launcher or a container may have given it a few of many.
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = ThreadPoolExecutor(processes or min(MOST_JUDGES, cpus), "judge", start)
        self._judges, self._threads, self._stop = judges, threads, weakref.finalize(self, stop)
        self._grade: Callable[[str], Future[Grade]] = lambda case: threads.submit(lambda: mine.judge.grade(case))
        self._grade_once = lru_cache(MOST_KNOWN)(self._grade)

    def submit(
        self, prediction: str, gold: Gold, *, options: Mapping[str, str] | None = None, rule: str | None = None
    ) -> "Future[Grade]":
        if options:
            choice = {"options": dict(options), "rule": find_rule(rule or "boxed")}
            return self._grade(json.dumps({"prediction": prediction, "gold": gold, **choice}))
        said = after_thinking(prediction)
        boxed = last_boxed(said)
        if boxed:
            return self._grade_once(json.dumps({"answer": boxed[:LONGEST_ANSWER], "gold": gold}))
        end = "" if boxed == "" else said[-LONGEST_ANSWER:]  # an empty box is no answer
        return self._grade(json.dumps({"prediction": end, "gold": gold}))

    def __enter__(self) -> "Judges":
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes; what was not graded yet is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._stop()


class _Judge:
    """One process, started when it is first needed and started again after it had to be killed."""

    def __init__(self, time_limit: float) -> None:
        self.time_limit = time_limit
        self.process: Any = None  # a Popen with pipes, once it is started

    def grade(self, case: str) -> Grade:
        if self.process is None:
            self._start()
        try:
            self.process.stdin.write(case.encode() + b"\n")
            self.process.stdin.flush()
            # The judge stops itself after that much CPU; it is killed when it cannot, or gets no CPU at all.
            answer = self._line(PATIENCE * (self.time_limit + 1))
        except BrokenPipeError:  # the memory limit ended it between two cases
            answer = b""
        if not answer:
            self.stop()
            return Grade(correct=False, timed_out=True)
        return Grade(**json.loads(answer))

    def _start(self) -> None:
        command = [sys.executable, "-m", "qsft.evals.judge", str(self.time_limit)]
        # sympy walks over sets, so what it finds, or fails to find, would depend on the hash seed.
        env = {**os.environ, "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        if self._line(START_LIMIT).strip() != b"ready":
            self.stop()
            why = "Usually math-verify is missing: pip install 'qsft[eval]'."
            raise ValueError(f"the grading process did not start (its message stands above). {why}")

    def _line(self, seconds: float) -> bytes:
        """The process's next line; empty when it ended or did not answer in time."""
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline() if ready else b""

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


# ---- the process ----


class OutOfTime(BaseException):
    """The answer's time is over. Not an Exception: math-verify turns those into "no answer"."""


def judge(case: dict[str, Any]) -> Grade:
    """The grade of one case: {answer or prediction, gold}, or {prediction, gold, options, rule}."""
    if "options" in case:
        return grade_choice(**case)
    from sympy.core.random import seed

    from qsft.evals.answers import grade_answer, grade_math

    seed(0)  # sympy asks its assumptions in random order, and in some orders it contradicts itself
    return grade_answer(**case) if "answer" in case else grade_math(**case)


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
    return asdict(graded if "options" in case else in_canonical_form(graded, seconds))


def in_canonical_form(graded: Grade, seconds: float) -> Grade:
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


def main() -> None:

    def out_of_time(*_: object) -> None:
        raise OutOfTime

    seconds = float(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    signal.signal(signal.SIGPROF, out_of_time)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    logging.disable(logging.WARNING)  # math-verify warns about every answer it cannot parse
    import math_verify  # noqa: F401  (paid once, before the first answer's time runs)

    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(judge_in_time(json.loads(line), seconds)), flush=True)


if __name__ == "__main__":
    main()
