"""One task under one protocol: its prompts, its settings, and the grading of its responses while they are drawn."""

from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qsft.data.prompts import Prompt, find_preset
from qsft.evals.grading.grade import Grade
from qsft.evals.grading.pool import Judges
from qsft.evals.protocol import Protocol
from qsft.evals.tasks import Problem, Task
from qsft.fingerprints import digest_json
from qsft.inference.sampling import Generation
from qsft.ledger import Key

# Settings of a protocol that samples do not depend on: the prompts themselves are recorded.
NOT_SAMPLED = ("rule", "prompt")


@dataclass(frozen=True)
class TaskRun:
    """One task to be evaluated under one protocol."""

    task: Task
    problems: Sequence[Problem] = field(repr=False)
    protocol: Protocol

    @property
    def name(self) -> str:
        return self.task.name

    @cached_property
    def by_id(self) -> dict[str, Problem]:
        return {problem.id: problem for problem in self.problems}

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """The prompt of each problem."""
        if self.task.prompt is not None:
            return {problem.id: self.task.prompt(problem) for problem in self.problems}
        preset = find_preset(self.protocol.prompt)
        return {problem.id: preset.prompt(problem.question, problem.options) for problem in self.problems}

    @property
    def keys(self) -> list[Key]:
        samples = range(self.protocol.num_samples)
        return [(problem.id, sample) for problem in self.problems for sample in samples]

    def sampling_settings(self, num_problems: int | None = None) -> dict[str, Any]:
        """The settings that generations (of the first problems) depend on; how they are graded may change."""
        settings = {name: value for name, value in self.protocol.record().items() if name not in NOT_SAMPLED}
        prompts = [list(item) for item in self.prompts.items()][:num_problems]
        return {**settings, "prompts": digest_json(prompts)}

    def sample_digests(self, made_by: Mapping[str, Any]) -> dict[str, str]:
        """A digest of what decides the text of each problem's samples: model, sampling and its own prompt."""
        settings = {key: value for key, value in made_by.items() if key not in ("num_samples", "prompts")}
        return {problem: digest_json([settings, prompt]) for problem, prompt in self.prompts.items()}


class Grading:
    """The grades of a run's generations: by the task's own grader here, else by judges in other processes."""

    def __init__(self, run: TaskRun, judges: Judges) -> None:
        self.run = run
        self.judges = judges
        self._futures: dict[Key, Future[Grade]] = {}
        self._finished: deque[Future[Grade]] = deque()  # appended in the judges' threads, counted in this one
        self._num_graded = 0
        self._num_correct = 0

    def submit(self, generation: Generation) -> None:
        future = self._grade(generation)
        self._futures[generation.key] = future
        future.add_done_callback(self._finished.append)

    def _grade(self, generation: Generation) -> Future[Grade]:
        problem = self.run.by_id[generation.problem]
        grader = self.run.task.grader
        if grader is None:
            rule = self.run.protocol.rule
            return self.judges.submit(generation.text, problem.gold, options=problem.options, rule=rule)
        graded = grader(generation, problem)
        future: Future[Grade] = Future()
        future.set_result(graded if isinstance(graded, Grade) else Grade(graded, graded, generation.text))
        return future

    def grades(self) -> list[tuple[Key, Grade]]:
        """All grades; waits for those that are not finished."""
        return [(key, future.result()) for key, future in self._futures.items()]

    def accuracy_so_far(self) -> str:
        """The accuracy of what is graded by now, for a progress bar."""
        while self._finished:
            grade = self._finished.popleft().result()
            self._num_correct += grade.correct
            self._num_graded += 1
        if not self._num_graded:
            return ""
        return f", accuracy {100 * self._num_correct / self._num_graded:.1f} % of {self._num_graded:,} graded"
