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
INTERVAL = (0.025, 0.975)  # quantiles: the 95 % interval


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error and its 95 % interval."""

    mean: float
    se: float
    low: float
    high: float


def mean_over_problems(values: Scores, seed: int = 0) -> Estimate:
    """The mean of one value per problem; se = sqrt(Σ(v_i − v̄)² / (N(N−1))), interval by percentile bootstrap.

    If v_i is the mean over a problem's samples, this is the standard error clustered by problem.
    """
    low, high = np.quantile(bootstrap_means(values, seed), INTERVAL)
    return Estimate(float(values.mean()), standard_error(values), float(low), float(high))


def macro_average(per_task: Sequence[Scores], seed: int = 0) -> Estimate:
    """The mean of the tasks' means; the tasks are fixed, and problems are resampled within each task."""
    means = [float(values.mean()) for values in per_task]
    errors = np.array([standard_error(values) for values in per_task])
    standard_error_of_mean = np.sqrt((errors**2).sum()) / len(per_task)
    resampled = [bootstrap_means(values, seed + index) for index, values in enumerate(per_task)]
    low, high = np.quantile(np.mean(resampled, axis=0), INTERVAL)
    return Estimate(float(np.mean(means)), float(standard_error_of_mean), float(low), float(high))


def paired_difference(a: Scores, b: Scores, seed: int = 0) -> Estimate:
    """The mean of b − a over the same problems; the difficulty of a problem cancels."""
    return mean_over_problems(b - a, seed)


def standard_error(values: Scores) -> float:
    """The standard error of the mean of independent values; nan for a single one."""
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def bootstrap_means(values: Scores, seed: int = 0) -> Scores:
    """The means of 10,000 resamples of the values, drawn with replacement.

    How often each distinct value occurs in a resample is multinomial. Scores of k in n have few distinct values, so
    drawing these counts is much faster than drawing single values, and has the same distribution.
    """
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=RESAMPLES)
    return drawn @ distinct / len(values)


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """The unbiased estimate of "at least one of k is correct": 1 − C(n−c, k) / C(n, k), with c of n samples correct."""
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority_accuracy(answers: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
    """The probability that the most frequent answer is correct; a tie is decided at random.

    Correct answers count as one answer, however they are written. None has no vote.
    """
    wrong_votes: Counter[Hashable] = Counter()
    correct_votes = 0
    for answer, is_correct in zip(answers, correct, strict=True):
        if answer is None:
            continue
        if is_correct:
            correct_votes += 1
        else:
            wrong_votes[answer] += 1
    most_wrong_votes = max(wrong_votes.values(), default=0)
    if correct_votes == 0 or correct_votes < most_wrong_votes:
        return 0.0
    tied = [answer for answer, votes in wrong_votes.items() if votes == correct_votes]
    return 1.0 / (1 + len(tied))


def run_spread(scores: Scores) -> dict[str, float]:
    """How much the n runs differ: standard deviation, lowest and highest accuracy of a run (a column)."""
    runs = scores.mean(axis=0)
    std = float(runs.std(ddof=1)) if len(runs) > 1 else 0.0
    return {"std": std, "min": float(runs.min()), "max": float(runs.max())}
