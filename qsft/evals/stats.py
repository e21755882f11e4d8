"""Statistics of Average@n: means with intervals, pass@k, majority votes.

Scores are an array [N, n]: one row per problem, one column per run. Problems are independent and the samples of one
problem are not, so intervals resample problems, never single samples.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

RESAMPLES = 10_000


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
    """The unbiased estimate of "at least one of k is correct": 1 − C(n−c, k) / C(n, k), with c of n samples correct."""
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority(answers: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
    """The probability that the most frequent answer is correct; a tie is decided at random.

    Correct answers count as one answer, however they are written. None has no vote.
    """
    votes: Counter[Hashable] = Counter()
    for answer, is_correct in zip(answers, correct, strict=True):
        if answer is not None:
            votes["correct" if is_correct else ("wrong", answer)] += 1
    if not votes:
        return 0.0
    most = max(votes.values())
    leading = [vote for vote, count in votes.items() if count == most]
    return float("correct" in leading) / len(leading)


def run_spread(scores: Scores) -> dict[str, float]:
    """How much the n runs differ: standard deviation, lowest and highest accuracy of a run (a column)."""
    runs = scores.mean(axis=0)
    std = float(runs.std(ddof=1)) if len(runs) > 1 else 0.0
    return {"std": std, "min": float(runs.min()), "max": float(runs.max())}


def paired_difference(a: Scores, b: Scores, seed: int = 0) -> Estimate:
    """The mean of b − a over the same problems; a problem's difficulty cancels."""
    return mean_over_problems(b - a, seed)
