"""Grades, made in processes that can be stopped: sympy can be sent into a loop that no signal interrupts.

`grade(prediction, gold)` grades one answer; `Judges` grades many on several cores. Both speak JSON lines to
`python -m qsft.evals.judge`, so neither cares whether the caller is a notebook, a thread or an unguarded script.
"""

import json
import os
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from qsft.evals.boxes import after_thinking, last_boxed

Gold = str | int | float | list[str] | tuple[str, ...]

TIME_LIMIT = 5.0  # seconds of CPU for one answer
MOST_JUDGES = 16
MOST_KNOWN = 100_000  # grades remembered
LONGEST_ANSWER = 2000  # characters: a longer "answer" is garbage, and unboxed ones stand at the end
RULES = ("boxed", "paper")  # how a multiple-choice response is read, see choice.py
START_LIMIT = 120.0  # seconds for a judge to import sympy on a busy machine


@dataclass(frozen=True)
class Grade:
    """What became of one response; true when it is correct.

    answer     the extracted answer in one writing (None: nothing could be extracted), the unit of majority votes
    timed_out  the grader took too long, so it counts as wrong
    failure    what the grader stumbled over: the answer counts as wrong, and the report says how often
    choices    of a multiple-choice response, the letter that each rule reads: boxed, and the paper's first and last
    """

    correct: bool
    lenient: bool = False
    answer: str | None = None
    timed_out: bool = False
    failure: str | None = None
    choices: dict[str, str | None] | None = None

    def __bool__(self) -> bool:
        return self.correct

    @property
    def ungraded(self) -> bool:
        """Whether the grader gave up, so that it is wrong for want of a verdict."""
        return self.timed_out or self.failure is not None


def grade(prediction: str, gold: Gold, *, options: Mapping[str, str] | None = None, rule: str | None = None) -> Grade:
    """The grade of a response against the gold answer.

    Without options, mathematics: the boxed (else last stated) answer by math-verify; a list of golds is a set.
    With options ({"A": "text", …}), multiple choice: gold is the letter, rule `boxed` (default) or `paper`, whose last
    match counts here; over a data set the better of first and last does.

    >>> bool(grade(r"so \\boxed{0.5}", r"\\frac{1}{2}"))
    True
    """
    return _single_judge().submit(prediction, gold, options=options, rule=rule).result()


@lru_cache(maxsize=1)
def _single_judge() -> "Judges":
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

        self._judges, self._stop = judges, weakref.finalize(self, stop)
        self._threads = ThreadPoolExecutor(processes or min(MOST_JUDGES, _cpus()), "judge", start)
        self._grade: Callable[[Mapping[str, Any]], Grade] = lambda case: mine.judge.grade(case)
        self._known: dict[str, Future[Grade]] = {}

    def submit(
        self, prediction: str, gold: Gold, *, options: Mapping[str, str] | None = None, rule: str | None = None
    ) -> "Future[Grade]":
        """A future Grade of one response; arguments as in `grade`."""
        if options:
            rule = find_rule(rule or "boxed")
            case: dict[str, Any] = {"prediction": prediction, "gold": gold, "options": dict(options), "rule": rule}
            return self._threads.submit(self._grade, case)
        said = after_thinking(prediction)
        boxed = last_boxed(said)
        if not boxed:
            end = "" if boxed == "" else said[-LONGEST_ANSWER:]  # an empty box is no answer
            return self._threads.submit(self._grade, {"prediction": end, "gold": gold, "options": None})
        case = {"answer": boxed[:LONGEST_ANSWER], "gold": gold, "options": None}
        key = json.dumps(case)
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[key] = self._threads.submit(self._grade, case)
        return self._known[key]

    def close(self) -> None:
        """Stop the processes; what was not graded yet is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._stop()

    def __enter__(self) -> "Judges":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Judge:
    """One process, started when it is first needed and started again after it had to be killed."""

    def __init__(self, time_limit: float) -> None:
        self.time_limit = time_limit
        self.process: subprocess.Popen[bytes] | None = None

    def grade(self, case: Mapping[str, Any]) -> Grade:
        if self.process is None:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(case).encode() + b"\n")
            self.process.stdin.flush()
            # The judge stops itself after that much CPU; it is killed when it cannot, or gets no CPU at all.
            answer = self._line(5 * self.time_limit + 5)
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
        ready = self._line(START_LIMIT)
        if ready.strip() != b"ready":
            self.stop()
            raise ValueError(
                "the grading process did not start, so nothing can be graded (its message stands above). "
                "Usually math-verify is missing: pip install 'qsft[eval]'."
            )

    def _line(self, seconds: float) -> bytes:
        """The process's next line; empty when it ended or did not answer in time."""
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline() if ready else b""

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def _cpus() -> int:
    """The CPUs that this process may use: a launcher or a container may have given it a few of many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_rule(name: str) -> str:
    """The rule of that name; `last-letter` is what version 0.1 called the paper's."""
    name = "paper" if name == "last-letter" else name
    if name not in RULES:
        raise ValueError(f"unknown multiple-choice rule {name!r}; choose one of {', '.join(RULES)}.")
    return name
