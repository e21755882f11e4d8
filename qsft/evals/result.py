"""The graded responses of one task, and the numbers they come to: exact means with intervals, votes, lengths."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from qsft.evals import stats
from qsft.evals.grade import Grade
from qsft.evals.request import Generation
from qsft.evals.tasks import Problem

READINGS = {
    "boxed": "the box",
    "first": "the paper's rule, whose first match scores higher here",
    "last": "the paper's rule, whose last match scores higher here",
}


@dataclass(frozen=True)
class Result:
    """The graded samples of one task: N·n generations in the order of problems, n after n."""

    task: str
    samples: int
    generations: Sequence[Generation] = field(repr=False)
    grades: Sequence[Grade] = field(repr=False)
    problems: Sequence[Problem] = field(default=(), repr=False)
    reading: str | None = None  # of multiple choice: which of READINGS the grades are

    @property
    def scores(self) -> stats.Scores:
        """1 where a sample is correct, [problem, sample]."""
        return np.array([grade.correct for grade in self.grades], dtype=float).reshape(-1, self.samples)

    def per_problem(self, *, lenient: bool = False) -> dict[str, float]:
        """Each problem's share of right samples."""
        samples: dict[str, list[bool]] = {}
        for generation, grade in zip(self.generations, self.grades, strict=True):
            samples.setdefault(generation.problem, []).append(grade.correct or (lenient and grade.lenient))
        return {problem: float(np.mean(right)) for problem, right in samples.items()}

    def readings(self) -> dict[str, float]:
        """The share of right answers by each reading of multiple choice."""
        golds = {problem.id: str(problem.gold).strip().upper() for problem in self.problems}
        asked = [golds.get(generation.problem) for generation in self.generations]
        read = [grade.choices or {} for grade in self.grades]
        return {name: _mean(one.get(name) == gold for one, gold in zip(read, asked, strict=True)) for name in READINGS}


def task_numbers(result: Result) -> dict[str, Any]:
    """Everything a report says about one task; shares are between 0 and 1."""
    grades, generations, n, scores = result.grades, result.generations, result.samples, result.scores
    correct = scores.sum(axis=1).astype(int)
    votes = [grades[i : i + n] for i in range(0, len(grades), n)]
    ladder = sorted({2**power for power in range(n.bit_length())} | {n})  # 1, 2, 4, … and n itself
    tokens, right = np.array([generation.tokens for generation in generations]), scores.ravel() > 0
    by_grade = {"correct": tokens[right], "wrong": tokens[~right]}
    return {
        "problems": len(scores),
        "samples": n,
        "acc": asdict(stats.mean_over_problems(values(result.per_problem()))),
        "acc_lenient": asdict(stats.mean_over_problems(values(result.per_problem(lenient=True)))),
        "runs": stats.run_spread(scores),
        "pass_at": {str(k): _mean(stats.pass_at(c, n, k) for c in correct) for k in ladder},
        "majority": _mean(stats.majority([g.answer for g in vote], [g.correct for g in vote]) for vote in votes),
        "no_answer": _mean(grade.answer is None and not grade.ungraded for grade in grades),
        "grading_failures": _mean(grade.failure is not None for grade in grades),
        "grading_timeouts": _mean(grade.timed_out for grade in grades),
        "truncated": _mean(generation.finish == "length" for generation in generations),
        **({"reading": result.reading, "readings": result.readings()} if result.reading else {}),
        "tokens": lengths(tokens) | {name: _mean(some) if len(some) else None for name, some in by_grade.items()},
    }


def lengths(tokens: Sequence[int] | np.ndarray) -> dict[str, Any]:
    """The lengths of responses: mean and quartiles."""
    p25, p50, p75 = map(float, np.quantile(tokens, [0.25, 0.5, 0.75]))
    return {"mean": _mean(tokens), "p25": p25, "p50": p50, "p75": p75}


def values(per_problem: Mapping[str, float]) -> stats.Scores:
    """One value per problem, as the statistics take them."""
    return np.array(list(per_problem.values()))


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
