"""Grade responses in other processes, which can be stopped: sympy may run into a loop that no signal interrupts.

The processes (worker.py) are reached through pipes, so it does not matter whether the caller is a notebook, a thread or
a script without a main guard.
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
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import qsft
from qsft.evals.grading.boxes import after_thinking, last_boxed
from qsft.evals.grading.grade import Gold, Grade
from qsft.evals.grading.math_answers import LONGEST_ANSWER
from qsft.evals.grading.multiple_choice import check_rule
from qsft.evals.grading.worker import READY

TIME_LIMIT = 5.0  # seconds of CPU for one answer
PATIENCE = 5.0  # times that limit by the clock, on a busy machine
START_LIMIT = 120.0  # seconds for a process to import sympy on a busy machine
MAX_PROCESSES = 16
MAX_REMEMBERED = 100_000  # grades
# The directory of this package comes last on the path, so that it is found where it is not installed, and -P keeps the
# working directory off the path: a sympy.py there is not executed.
START_WORKER = "import sys; sys.path.append(sys.argv.pop()); from qsft.evals.grading.worker import main; main()"


def grade(prediction: str, gold: Gold, *, options: Mapping[str, str] | None = None, rule: str | None = None) -> Grade:
    r"""The grade of a response against the gold answer.

    Without options, the answer is mathematics. The boxed answer, or else the last answer that is stated, is compared by
    math-verify. A list of gold answers is compared as a set. With options ({"A": "text", …}), the task is multiple
    choice. `gold` is then the letter, and `rule` is boxed (the default), li or m1; see
    `qsft.evals.grading.multiple_choice`.

    >>> bool(grade(r"so \boxed{0.5}", r"\frac{1}{2}"))
    True
    """
    return _single_process().submit(prediction, gold, options=options, rule=rule).result()


@lru_cache(maxsize=1)
def _single_process() -> "Judges":
    return Judges(1)


def check_math_verify() -> None:
    """Raise ValueError if math-verify, which grades answers, is not installed."""
    if find_spec("math_verify") is None:
        raise ValueError("grading needs math-verify, which is not installed. Run pip install 'qsft[eval]'.")


class Judges:
    """Grading processes; `submit` returns the Future of a Grade. An answer past the time limit is wrong and timed out.

    By default as many processes as this process may use CPUs, at most 16, each started when there is work for it.
    Equal pairs of gold and boxed answer are graded once: of many samples several agree.
    """

    def __init__(self, num_processes: int | None = None, time_limit: float = TIME_LIMIT) -> None:
        # What threads and finalizer hold must not refer to self: it would never be collected, and its processes would
        # not be stopped.
        of_thread = threading.local()  # each thread has one process
        workers: list[_Worker] = []

        def start() -> None:
            of_thread.worker = _Worker(time_limit)
            workers.append(of_thread.worker)

        def stop() -> None:
            for worker in workers:
                worker.stop()

        self._workers = workers
        self._threads = ThreadPoolExecutor(num_processes or min(MAX_PROCESSES, usable_cpus()), "judge", start)
        self._stop = weakref.finalize(self, stop)
        threads = self._threads
        self._grade: Callable[[str], Future[Grade]] = lambda case: threads.submit(lambda: of_thread.worker.grade(case))
        self._grade_once = lru_cache(MAX_REMEMBERED)(self._grade)

    def submit(
        self, prediction: str, gold: Gold, *, options: Mapping[str, str] | None = None, rule: str | None = None
    ) -> "Future[Grade]":
        if options:
            rule = check_rule(rule or "boxed")
            case = {"prediction": prediction, "gold": gold, "options": dict(options), "rule": rule}
            return self._grade(json.dumps(case))
        response = after_thinking(prediction)
        boxed = last_boxed(response)
        if boxed:
            return self._grade_once(json.dumps({"answer": boxed[:LONGEST_ANSWER], "gold": gold}))
        if boxed == "":  # an empty box is not an answer
            return self._grade(json.dumps({"prediction": "", "gold": gold}))
        return self._grade(json.dumps({"prediction": response[-LONGEST_ANSWER:], "gold": gold}))

    def __enter__(self) -> "Judges":
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the processes; what was not graded yet is dropped."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._stop()


def usable_cpus() -> int:
    """The CPUs that this process may use: a launcher or a container may have given it a few of many."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Worker:
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
            # The process stops itself after that much CPU time; it is killed when it cannot, or gets no CPU at all.
            answer = self._read_line(PATIENCE * (self.time_limit + 1))
        except BrokenPipeError:  # the memory limit ended it between two cases
            answer = b""
        if not answer:
            self.stop()
            return Grade(correct=False, timed_out=True)
        return Grade(**json.loads(answer))

    def _start(self) -> None:
        check_math_verify()
        package_parent = str(Path(qsft.__file__).resolve().parent.parent)
        command = [sys.executable, "-P", "-c", START_WORKER, str(self.time_limit), package_parent]
        # sympy iterates over sets, so what it finds would depend on the hash seed.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        if self._read_line(START_LIMIT).strip() != READY.encode():
            self.stop()
            raise ValueError(
                "the grading process did not start; its error is printed above. If a package is missing, run "
                "pip install 'qsft[eval]'."
            )

    def _read_line(self, seconds: float) -> bytes:
        """The next line of the process; empty when it ended or did not answer in time."""
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        return self.process.stdout.readline() if ready else b""

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None
