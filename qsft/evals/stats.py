"""The statistics of Average@n: N problems, n samples of each, so the problem is the unit that is independent.

A score matrix is [N, n]: a row is a problem, a column a run. Intervals resample problems, never single samples.
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
    low, high = interval(bootstrap(values, seed))
    return Estimate(float(values.mean()), standard_error(values), low, high)


def standard_error(values: Scores) -> float:
    """The standard error of the mean of independent values; nan for a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def bootstrap(values: Scores, seed: int = 0, resamples: int = RESAMPLES) -> Scores:
    """The means of `resamples` resamplings of the values with replacement.

    Resampling draws how often each value occurs; distinct values are drawn by one multinomial, which for the few
    levels that k-of-n scores have is the same distribution at a fraction of the cost.
    """
    levels, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=resamples)
    return drawn @ levels / len(values)


def interval(resampled: Scores) -> tuple[float, float]:
    """The central 95 % of resampled means."""
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(low), float(high)


def macro_average(per_task: Sequence[Scores], seed: int = 0) -> Estimate:
    """The mean of the tasks' means; tasks are fixed, problems are resampled within each."""
    means = [float(values.mean()) for values in per_task]
    errors = np.array([standard_error(values) for values in per_task])
    resampled = np.mean([bootstrap(values, seed + index) for index, values in enumerate(per_task)], axis=0)
    low, high = interval(resampled)
    return Estimate(float(np.mean(means)), float(np.sqrt((errors**2).sum()) / len(per_task)), low, high)


def pass_at(correct: int, samples: int, k: int) -> float:
    """The unbiased estimate of "at least one of k is right" from `correct` of `samples`: 1 − C(n−c, k) / C(n, k).

    >>> pass_at(1, 4, 2)
    0.5
    """
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
