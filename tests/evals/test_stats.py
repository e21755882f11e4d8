"""The statistics against closed forms and against simulation."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsft.evals import stats


def test_mean_and_clustered_error_in_closed_form():
    scores = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1.0]])
    per_problem = scores.mean(axis=1)  # .5 1 0 .25
    estimate = stats.mean_over_problems(per_problem)
    assert estimate.mean == pytest.approx(0.4375)
    deviations = np.array([0.0625, 0.5625, -0.4375, -0.1875])
    assert estimate.se == pytest.approx(np.sqrt((deviations**2).sum() / (4 * 3)))
    assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1


def test_samples_of_one_problem_do_not_shrink_the_error():
    one = np.random.default_rng(0).integers(0, 2, size=50).astype(float)
    copied = np.repeat(one[:, None], 16, axis=1)
    assert stats.mean_over_problems(copied.mean(axis=1)).se == pytest.approx(stats.standard_error(one))


def test_one_problem_has_no_standard_error():
    assert np.isnan(stats.standard_error(np.array([1.0])))


@given(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n)))
)
def test_pass_at_k_is_the_mean_over_all_subsets(case):
    outcomes, k = case
    subsets = list(combinations(outcomes, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert stats.pass_at_k(sum(outcomes), len(outcomes), k) == pytest.approx(expected)


def test_bootstrap_has_the_moments_of_resampling(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 40_000)
    values = np.random.default_rng(1).random(40)
    means = stats.bootstrap_means(values)
    assert means.mean() == pytest.approx(values.mean(), abs=2e-3)
    assert means.std() == pytest.approx(values.std() / np.sqrt(40), rel=0.02)


def test_bootstrap_interval_covers_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(stats, "RESAMPLES", 1000)
    rng = np.random.default_rng(2)
    truth = 0.4
    covered = []
    for _ in range(400):
        accuracy = rng.beta(2, 3, size=100)  # its mean is the truth
        per_problem = rng.binomial(16, accuracy) / 16
        estimate = stats.mean_over_problems(per_problem)
        covered.append(estimate.low <= truth <= estimate.high)
    assert 0.91 <= np.mean(covered) <= 0.98


def test_a_paired_comparison_finds_what_the_unpaired_one_misses():
    rng = np.random.default_rng(3)
    accuracy = rng.beta(0.5, 0.5, size=200)
    a = rng.binomial(16, accuracy) / 16
    b = rng.binomial(16, np.clip(accuracy + 0.03, 0, 1)) / 16
    paired = stats.paired_difference(a, b)
    unpaired_error = np.hypot(stats.standard_error(a), stats.standard_error(b))
    assert paired.low > 0
    assert paired.mean - 1.96 * unpaired_error < 0


def test_macro_average_weighs_tasks_not_problems():
    tasks = [np.zeros(30), np.ones(1000)]
    estimate = stats.macro_average(tasks)
    assert (estimate.mean, estimate.se) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        # Correct answers vote together, and a tie is decided at random.
        (["1/2", "0.5", "3", "3"], [True, True, False, False], 0.5),
        (["3", "3", "1/2", "4", "4", "0.5"], [False, False, True, False, False, True], 1 / 3),
        (["3", "3", "4"], [False, False, True], 0.0),
        ([None, None, "4"], [False, False, True], 1.0),
        ([None], [False], 0.0),
    ],
)
def test_majority_vote(answers, correct, expected):
    assert stats.majority_accuracy(answers, correct) == pytest.approx(expected)


def test_run_spread():
    spread = stats.run_spread(np.array([[1.0, 0.0], [1.0, 0.0]]))
    assert spread == {"std": pytest.approx(np.sqrt(0.5)), "min": 0.0, "max": 1.0}
