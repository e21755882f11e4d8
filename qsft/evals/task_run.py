"""One task under one protocol: what is asked, what samples depend on, and their grades, made while they are drawn."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from qsft.data.prompts import Prompt, find_preset
from qsft.evals.grade import Grade, better_reading
from qsft.evals.judge import Judges
from qsft.evals.protocol import Protocol
from qsft.evals.report import percent
from qsft.evals.request import Generation
from qsft.evals.stats import READINGS, Result
from qsft.evals.tasks import Problem, Task
from qsft.fingerprints import digest_json
from qsft.ledger import Key


@dataclass(frozen=True)
class TaskRun:
    """One task to be measured under one protocol."""

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
        preset = find_preset(self.protocol.prompt)
        ask = self.task.prompt or (lambda problem: preset.prompt(problem.question, problem.options))
        return {problem.id: ask(problem) for problem in self.problems}

    @property
    def keys(self) -> list[Key]:
        """What the finished task consists of, in order."""
        return [(problem.id, sample) for problem in self.problems for sample in range(self.protocol.n)]

    def record(self, first: int | None = None) -> dict[str, Any]:
        """The settings that generations (of the first problems) depend on; how they are graded may change."""
        settings = {name: value for name, value in self.protocol.record().items() if name not in ("rule", "prompt")}
        return {**settings, "prompts": digest_json([list(one) for one in self.prompts.items()][:first])}

    def digests(self, made_by: Mapping[str, Any]) -> dict[str, str]:
        """What decides the text of each problem's samples: model, sampling and its own prompt, as one digest."""
        settings = {key: value for key, value in made_by.items() if key not in ("n", "prompts")}
        return {problem: digest_json([settings, prompt]) for problem, prompt in self.prompts.items()}

    def describe(self) -> dict[str, Any]:
        task = self.task
        rows = {"hub": task.hub, "split": task.split, "source": task.source, "published_rows": task.rows}
        return {**self.protocol.record(), **rows}

    def result(self, generations: Sequence[Generation], graded: Mapping[Key, Grade]) -> Result:
        """The result; by the paper's rule the better of the two readings of its multiple-choice responses."""
        grades, reading = [graded[key] for key in self.keys], None
        if self.task.multiple_choice and any(one.choices for one in grades):
            reading = "boxed"
            if self.protocol.rule == "paper":
                reading, grades = better_reading(grades, [self.by_id[one.problem].gold for one in generations])
        return Result(self.name, self.protocol.n, generations, grades, self.problems, reading)

    def notes(self, result: Result, about: Mapping[str, Any]) -> list[str]:
        name, grades, notes = self.name, result.grades, []
        if self.protocol.temperature == 0:
            notes.append("greedy: one response per prompt, so the interval is over problems only.")
        elif about["independent"]:
            notes.append("float32, seeded per sample: batching, processes and resuming do not change samples.")
        else:
            how = f"{about['backend']} in {about['dtype']}"
            notes.append(f"{how}: rounding depends on the batch, so batching may change samples from run to run.")
        if self.task.rows not in (None, len(self.problems)):
            notes.append(f"{name}: {len(self.problems)} of the {self.task.rows} published problems.")
        if result.reading is not None:
            boxed, first, last = (percent(result.readings()[key]) for key in ("boxed", "first", "last"))
            notes.append(
                f"{name}: read by {READINGS[result.reading]}. Right by box {boxed} %, by the paper's first match "
                f"{first} %, by its last {last} %."
            )
        longest = self.protocol.max_new_tokens
        if cut := sum(one.finish == "length" and one.tokens < longest for one in result.generations):
            notes.append(f"{name}: {cut} responses ended at the model's context of {about['context']} tokens.")
        if late := sum(one.timed_out for one in grades):
            notes.append(f"{name}: {late} responses took the grader too long and count as wrong.")
        if failures := [one.failure.partition(":")[0] for one in grades if one.failure]:
            kinds = f"{', '.join(sorted(set(failures)))}; grades/ has each"
            notes.append(f"{name}: the grader stumbled over {len(failures)} responses, which count as wrong ({kinds}).")
        return notes


class Grading:
    """The grades of a run's generations: by the task's own grader here, else by judges in other processes."""

    def __init__(self, run: TaskRun, judges: Judges, generations: Iterable[Generation] = ()) -> None:
        self.run, self.judges = run, judges
        self._futures: dict[Key, Future[Grade]] = {}
        self._done: deque[Future[Grade]] = deque()  # judges answer in threads of their own; counted in this one
        self._graded = self._right = 0
        for generation in generations:
            self.submit(generation)

    def submit(self, generation: Generation) -> None:
        problem, task = self.run.by_id[generation.problem], self.run.task
        future: Future[Grade] = Future()
        if task.grader is None:
            options, rule = problem.options, self.run.protocol.rule
            future = self.judges.submit(generation.text, problem.gold, options=options, rule=rule)
        else:
            graded = task.grader(generation, problem)
            future.set_result(graded if isinstance(graded, Grade) else Grade(graded, graded, generation.text))
        self._futures[generation.key] = future
        future.add_done_callback(self._done.append)

    def grades(self) -> list[tuple[Key, Grade]]:
        return [(key, future.result()) for key, future in self._futures.items()]

    def so_far(self) -> str:
        """The accuracy of what is graded by now, and of how many that is."""
        while self._done:
            self._right += self._done.popleft().result().correct
            self._graded += 1
        share = 100 * self._right / max(1, self._graded)
        return f", accuracy {share:.1f} % of {self._graded:,} graded" if self._graded else ""
