"""Metrics are exact means over tokens, whatever the batches; quartiles come from the histogram."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qsft.losses.sums import GAMMA_BINS, SUM_NAMES
from qsft.train.metrics import NAMES, MetricSums, check_finite, compute_metrics, mode_and_prefix, quantile

values = st.lists(st.floats(0, 1), min_size=1, max_size=60)

LOSS = torch.tensor(1.0)


@given(values, st.floats(0.01, 0.99))
def test_quantiles_are_within_a_bin(samples, q):
    bins = torch.bincount((torch.tensor(samples) * (GAMMA_BINS - 1)).round().long(), minlength=GAMMA_BINS).tolist()
    exact = torch.tensor(samples).quantile(q, interpolation="nearest")
    below = sum(s < quantile(bins, q) - 1 / GAMMA_BINS for s in samples)
    above = sum(s > quantile(bins, q) + 1 / GAMMA_BINS for s in samples)
    assert below <= q * len(samples) + 1e-6
    assert above <= (1 - q) * len(samples) + 1e-6
    assert 0 <= quantile(bins, q) <= 1
    assert exact.isfinite()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_sums_do_not_care_about_batches(sizes):
    together = MetricSums()
    apart = MetricSums()
    vector = torch.arange(len(SUM_NAMES), dtype=torch.float32) + 1
    for size in sizes:
        apart.add(vector * size, size, LOSS)
    together.add(vector * sum(sizes), torch.tensor(sum(sizes)), LOSS)
    one, other = together.take(lambda t: t), apart.take(lambda t: t)
    for name in NAMES:
        if name != "micro_batches":
            assert one[name] == pytest.approx(other[name])
    assert apart.take(lambda t: t) == {}


def test_counts_beyond_float32():
    sums = MetricSums()
    vector = torch.zeros(len(SUM_NAMES))
    vector[0] = 2**24
    sums.add(vector, 2**24, LOSS)
    vector[0] = 1
    sums.add(vector, 1, LOSS)
    assert sums.take(lambda t: t)["tokens"] == 2**24 + 1


def test_tokens_read_are_counted_once():
    sums = MetricSums()
    sums.add(torch.ones(len(SUM_NAMES)), 5, LOSS)
    assert sums.read(lambda t: 2 * t)["tokens_read"] == 10
    sums.clear_tokens_read()
    after = sums.take(lambda t: t)
    assert (after["tokens_read"], after["tokens"]) == (0, 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_is_found_and_explained(value):
    sums = MetricSums()
    sums.add(torch.ones(len(SUM_NAMES)), 5, LOSS)
    check_finite(sums.read(lambda t: t), step=3)
    sums.add(torch.ones(len(SUM_NAMES)), 5, torch.tensor(value))
    with pytest.raises(FloatingPointError, match=r"1 of 2 micro-batches.*up to step 3.*check the teacher"):
        check_finite(sums.read(lambda t: t), step=3)
    sums.add(torch.full((len(SUM_NAMES),), value), 5, torch.tensor(value))
    with pytest.raises(FloatingPointError, match=r"2 of 3 micro-batches.*the student's log-probs"):
        check_finite(sums.read(lambda t: t), step=3)


def test_teacher_metrics_only_with_a_teacher():
    sums = dict.fromkeys(NAMES, 0.0) | {"tokens": 4.0, "gamma_bin_0": 4.0}
    assert "teacher_tail" not in compute_metrics(sums)
    assert compute_metrics(sums | {"fallback": 4.0})["fallback_tokens"] == 4.0
    shares = compute_metrics(sums | {"teacher_tokens": 2.0, "rescue": 1.0})
    assert shares["rescue"] == 0.5


def test_only_trainers_own_logs_are_extended():
    assert mode_and_prefix({"loss": 1.0}) == ("train", "")
    assert mode_and_prefix({"eval_a_runtime": 1.0, "eval_a_loss": 2.0}) == ("eval", "eval_a_")
    assert mode_and_prefix({"train_runtime": 1.0}) == ("train", "")
    assert mode_and_prefix({"mine": 1.0}) == (None, "")
