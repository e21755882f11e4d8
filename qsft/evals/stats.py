"""The graded responses of one task, and the statistics of Average@n: exact means with intervals, votes, lengths.

A score matrix is [N, n]: a row is a problem, a column a run. The problem is the unit that is independent, so intervals
resample problems, never single samples.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qsft.evals.grade import Grade
from qsft.evals.tasks import Problem
from qsft.inference.sampling import Generation

Scores = NDArray[np.float64]

RESAMPLES = 10_000
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
    def scores(self) -> Scores:
        """1 where a sample is correct, [problem, sample]."""
        return np.array([grade.correct for grade in self.grades], dtype=float).reshape(-1, self.samples)

    def per_problem(self, *, lenient: bool = False) -> dict[str, float]:
        samples: dict[str, list[bool]] = {}
        for generation, grade in zip(self.generations, self.grades, strict=True):
            samples.setdefault(generation.problem, []).append(grade.correct or (lenient and grade.lenient))
        return {problem: float(np.mean(right)) for problem, right in samples.items()}

    def readings(self) -> dict[str, float]:
        golds = {problem.id: str(problem.gold).strip().upper() for problem in self.problems}
        asked = [golds.get(generation.problem) for generation in self.generations]
        read = [grade.choices or {} for grade in self.grades]
        return {name: _mean(one.get(name) == gold for one, gold in zip(read, asked, strict=True)) for name in READINGS}


def task_numbers(result: Result) -> dict[str, Any]:
    """Everything a report says about one task; shares are between 0 and 1."""
    grades, generations, n, scores = result.grades, result.generations, result.samples, result.scores
    votes = [grades[i : i + n] for i in range(0, len(grades), n)]
    ladder = sorted({2**power for power in range(n.bit_length())} | {n})  # 1, 2, 4, … and n itself
    tokens, right = np.array([generation.tokens for generation in generations]), scores.ravel() > 0
    by_grade = {"correct": tokens[right], "wrong": tokens[~right]}
    shares = [np.array([*result.per_problem(lenient=lenient).values()]) for lenient in (False, True)]
    return {
        "problems": len(scores),
        "samples": n,
        "acc": asdict(mean_over_problems(shares[0])),
        "acc_lenient": asdict(mean_over_problems(shares[1])),
        "runs": run_spread(scores),
        "pass_at": {str(k): _mean(pass_at(c, n, k) for c in scores.sum(axis=1).astype(int)) for k in ladder},
        "majority": _mean(majority([g.answer for g in vote], [g.correct for g in vote]) for vote in votes),
        "no_answer": _mean(g.answer is None and not g.timed_out and g.failure is None for g in grades),
        "grading_failures": _mean(grade.failure is not None for grade in grades),
        "grading_timeouts": _mean(grade.timed_out for grade in grades),
        "truncated": _mean(generation.finish == "length" for generation in generations),
        **({"reading": result.reading, "readings": result.readings()} if result.reading else {}),
        "tokens": lengths(tokens) | {name: _mean(some) if len(some) else None for name, some in by_grade.items()},
    }


def lengths(tokens: Sequence[int] | np.ndarray) -> dict[str, Any]:
    p25, p50, p75 = map(float, np.quantile(tokens, [0.25, 0.5, 0.75]))
    return {"mean": _mean(tokens), "p25": p25, "p50": p50, "p75": p75}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and its 95 % interval."""

    mean: float
    se: float
    low: float
    high: float


def mean_over_problems(values: Scores, seed: int = 0) -> Estimate:
    """The mean of one value per problem; se = sqrt(Σ(v_i − v̄)² / (N(N−1))), interval by percentile bootstrap.

    With v_i the mean over a problem's samples this is the standard error clustered by problem.
    """
    return macro_average([values], seed)


def macro_average(per_task: Sequence[Scores], seed: int = 0) -> Estimate:
    """The mean of the tasks' means; tasks are fixed, problems are resampled within each."""
    mean = np.mean([float(values.mean()) for values in per_task])
    errors = np.array([standard_error(values) for values in per_task])
    resampled = np.mean([bootstrap(values, seed + index) for index, values in enumerate(per_task)], axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return Estimate(float(mean), float(np.sqrt((errors**2).sum()) / len(per_task)), float(low), float(high))


def standard_error(values: Scores) -> float:
    """The standard error of the mean of independent values; nan for a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def bootstrap(values: Scores, seed: int = 0) -> Scores:
    """The means of 10,000 resamplings of the values with replacement.

    Resampling draws how often each value occurs; distinct values are drawn by one multinomial, which for the few
    levels that k-of-n scores have is the same distribution at a fraction of the cost.
    """
    levels, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=RESAMPLES)
    return drawn @ levels / len(values)


def pass_at(correct: int, samples: int, k: int) -> float:
    """The unbiased estimate of "at least one of k is right" from `correct` of `samples`: 1 − C(n−c, k) / C(n, k)."""
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority(answers: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
    """The probability that the most frequent answer is right, a tie being drawn: 1/2 where two lead and one is right.

    Right answers are one answer, however they are written; None has no vote.
    """
    votes: Counter[Hashable] = Counter()
    for answer, is_right in zip(answers, correct, strict=True):
        if answer is not None:
            votes["right" if is_right else ("wrong", answer)] += 1
    leading = [vote for vote, count in votes.items() if count == max(votes.values())]
    return float("right" in leading) / len(leading) if leading else 0.0


def run_spread(scores: Scores) -> dict[str, float]:
    """How far the n runs lie apart: standard deviation, lowest and highest accuracy of a column."""
    runs = scores.mean(axis=0)
    std = float(runs.std(ddof=1)) if len(runs) > 1 else 0.0
    return {"std": std, "min": float(runs.min()), "max": float(runs.max())}


def paired_difference(a: Scores, b: Scores, seed: int = 0) -> Estimate:
    """The mean of b − a over problems that both runs answered; a problem's difficulty cancels."""
    return mean_over_problems(b - a, seed)
