"""The graded responses of one task, and the numbers that a report gives about them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from qsft.evals.grading.grade import Grade
from qsft.evals.grading.multiple_choice import READINGS
from qsft.evals.stats import Scores, majority_accuracy, mean_over_problems, pass_at_k, run_spread
from qsft.evals.tasks import Problem
from qsft.inference.sampling import Generation


@dataclass(frozen=True)
class Result:
    """The graded samples of one task.

    Args:
        num_samples: samples per problem (n).
        generations: the responses, those of one problem after another: N·n in all.
        grades: the grade of each response.
        reading: multiple choice only: which reading of the responses is scored, one of READINGS.
    """

    task: str
    num_samples: int
    generations: Sequence[Generation] = field(repr=False)
    grades: Sequence[Grade] = field(repr=False)
    problems: Sequence[Problem] = field(default=(), repr=False)
    reading: str | None = None

    @property
    def scores(self) -> Scores:
        """1 where a sample is correct, [problem, sample]."""
        return np.array([grade.correct for grade in self.grades], dtype=float).reshape(-1, self.num_samples)

    def per_problem(self, *, lenient: bool = False) -> dict[str, float]:
        """The share of correct samples of each problem."""
        samples: dict[str, list[bool]] = {}
        for generation, grade in zip(self.generations, self.grades, strict=True):
            correct = grade.correct or (lenient and grade.lenient)
            samples.setdefault(generation.problem, []).append(correct)
        return {problem: float(np.mean(correct)) for problem, correct in samples.items()}

    def problem_means(self, *, lenient: bool = False) -> Scores:
        """The values of `per_problem` as an array."""
        return np.array(list(self.per_problem(lenient=lenient).values()))

    def accuracy_by_reading(self) -> dict[str, float]:
        """Multiple choice: the accuracy by each reading of the responses."""
        golds = {problem.id: str(problem.gold).strip().upper() for problem in self.problems}
        accuracies = {}
        for reading in READINGS:
            correct = [
                (grade.choices or {}).get(reading) == golds.get(generation.problem)
                for generation, grade in zip(self.generations, self.grades, strict=True)
            ]
            accuracies[reading] = float(np.mean(correct))
        return accuracies


def task_numbers(result: Result) -> dict[str, Any]:
    """Everything that a report says about one task; shares are between 0 and 1."""
    grades = result.grades
    scores = result.scores
    numbers: dict[str, Any] = {
        "problems": len(scores),
        "samples": result.num_samples,
        "acc": asdict(mean_over_problems(result.problem_means())),
        "acc_lenient": asdict(mean_over_problems(result.problem_means(lenient=True))),
        "runs": run_spread(scores),
        "pass_at": _pass_numbers(result),
        "majority": _majority_number(result),
        "no_answer": _mean([_has_no_answer(grade) for grade in grades]),
        "grading_failures": _mean([grade.failure is not None for grade in grades]),
        "grading_timeouts": _mean([grade.timed_out for grade in grades]),
        "truncated": _mean([generation.finish == "length" for generation in result.generations]),
        "tokens": _token_numbers(result),
    }
    if result.reading is not None:
        numbers["reading"] = result.reading
        numbers["readings"] = result.accuracy_by_reading()
    return numbers


def length_numbers(tokens: Sequence[int] | np.ndarray) -> dict[str, float]:
    """Mean and quartiles of response lengths."""
    p25, p50, p75 = map(float, np.quantile(tokens, [0.25, 0.5, 0.75]))
    return {"mean": float(np.mean(tokens)), "p25": p25, "p50": p50, "p75": p75}


def pooled_lengths(results: Sequence[Result]) -> dict[str, float]:
    """Response lengths in tokens over the responses of several tasks, and the share that was truncated."""
    generations = [generation for result in results for generation in result.generations]
    truncated = _mean([generation.finish == "length" for generation in generations])
    return {**length_numbers([generation.tokens for generation in generations]), "truncated": truncated}


def _token_numbers(result: Result) -> Mapping[str, float | None]:
    tokens = np.array([generation.tokens for generation in result.generations])
    correct = result.scores.ravel() > 0
    return {
        **length_numbers(tokens),
        "correct": float(tokens[correct].mean()) if correct.any() else None,
        "wrong": float(tokens[~correct].mean()) if not correct.all() else None,
    }


def _pass_numbers(result: Result) -> dict[str, float]:
    """pass@k for the powers of two up to n, and for n."""
    n = result.num_samples
    correct_counts = result.scores.sum(axis=1).astype(int)
    powers_of_two = [2**power for power in range(n.bit_length())]
    numbers = {}
    for k in sorted({*powers_of_two, n}):
        numbers[str(k)] = _mean([pass_at_k(count, n, k) for count in correct_counts])
    return numbers


def _majority_number(result: Result) -> float:
    """The share of problems that a majority vote over the samples solves."""
    n = result.num_samples
    accuracies = []
    for start in range(0, len(result.grades), n):
        votes = result.grades[start : start + n]
        accuracies.append(majority_accuracy([vote.answer for vote in votes], [vote.correct for vote in votes]))
    return _mean(accuracies)


def _has_no_answer(grade: Grade) -> bool:
    return grade.answer is None and not grade.timed_out and grade.failure is None


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
