"""Grades of generations while they are drawn, each once, and the accuracy so far."""

from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING

from qsft.evals.grade import Grade, Judges
from qsft.evals.request import Generation
from qsft.ledger import Key

if TYPE_CHECKING:
    from qsft.evals.evaluate import TaskRun


class Grading:
    """Grades generations of tasks: by the task's own grader here, else by judges in other processes."""

    def __init__(self) -> None:
        self._judges: Judges | None = None
        self._futures: dict[str, dict[Key, Future[Grade]]] = {}
        self._counts: dict[str, list[int]] = {}  # graded, right
        self._lock = Lock()

    def submit(self, run: "TaskRun", generation: Generation) -> None:
        future = self._grade(run, generation)
        self._futures.setdefault(run.task.name, {})[generation.problem, generation.sample] = future
        future.add_done_callback(self._counter(run.task.name))

    def grades(self, task: str) -> dict[Key, Grade]:
        """What was submitted, once all of it is graded."""
        return {key: future.result() for key, future in self._futures.get(task, {}).items()}

    def so_far(self, task: str) -> str:
        """The accuracy of what is graded by now, and of how many that is."""
        graded, right = self._counts.get(task, (0, 0))
        return f", accuracy {100 * right / graded:.1f} % of {graded:,} graded" if graded else ""

    def _grade(self, run: "TaskRun", generation: Generation) -> "Future[Grade]":
        problem = run.by_id[generation.problem]
        if run.task.grader is None:
            self._judges = self._judges or Judges()
            return self._judges.submit(generation.text, problem.gold, options=problem.options, rule=run.protocol.rule)
        graded = run.task.grader(generation, problem)
        future: Future[Grade] = Future()
        future.set_result(graded if isinstance(graded, Grade) else Grade(graded, graded, generation.text))
        return future

    def _counter(self, task: str) -> Callable[["Future[Grade]"], None]:
        def count(graded: "Future[Grade]") -> None:
            if not graded.cancelled() and graded.exception() is None:
                with self._lock:  # judges answer in threads of their own
                    counts = self._counts.setdefault(task, [0, 0])
                    counts[0] += 1
                    counts[1] += graded.result().correct

        return count

    def __enter__(self) -> "Grading":
        return self

    def __exit__(self, *_: object) -> None:
        if self._judges is not None:
            self._judges.close()
