"""What holds for every target, whatever the numbers."""

import pytest
import torch
from cases import CASES, IDS, make_batch
from hypothesis import given, settings
from hypothesis import strategies as st

from qsft.losses.reference import target_loss
from qsft.targets.registry import make_target
from qsft.targets.view import SideInputs, TopK

sizes = st.fixed_dictionaries(
    {"n": st.integers(1, 8), "v": st.integers(6, 30), "k": st.integers(1, 5), "seed": st.integers(0, 10_000)}
)
rows = st.sampled_from(CASES)


def loss_and_gradient(logits, labels, target, teacher, side):
    z = logits.clone().requires_grad_()
    loss = target_loss(z, labels, target, teacher, side=side)
    return loss.detach(), torch.autograd.grad(loss, z)[0]


@settings(max_examples=60, deadline=None)
@given(rows, sizes)
def test_gradient_sums_to_zero_and_is_zero_at_ignored_tokens(row, size):
    batch = make_batch(**size)
    _, grad = loss_and_gradient(batch.logits, batch.labels, make_target(row[0], **row[1]), batch.teacher, batch.side)
    assert grad.sum(-1).abs().max() < 1e-9
    assert not grad[batch.labels == -100].any()


@settings(max_examples=60, deadline=None)
@given(rows, sizes)
def test_permuting_the_vocabulary_permutes_the_gradient(row, size):
    batch = make_batch(**size)
    target = make_target(row[0], **row[1])
    order = torch.randperm(size["v"], generator=torch.Generator().manual_seed(size["seed"]))
    inverse = order.argsort()
    labels = torch.where(batch.labels < 0, batch.labels, inverse[batch.labels.clamp(min=0)])
    teacher = TopK(inverse[batch.teacher.ids], batch.teacher.logps, batch.teacher.label_logp)
    loss, grad = loss_and_gradient(batch.logits, batch.labels, target, batch.teacher, batch.side)
    loss2, grad2 = loss_and_gradient(batch.logits[:, order], labels, target, teacher, batch.side)
    torch.testing.assert_close(loss, loss2, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(grad[:, order], grad2, rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(rows.filter(lambda row: row[0] != "iw_sft"), sizes, st.integers(0, 8))
def test_splitting_the_batch_splits_the_sum(row, size, cut):
    """iw_sft is left out: its weight is per document, so only documents can be split off."""
    batch = make_batch(**size)
    target = make_target(row[0], **row[1])
    cut = min(cut, size["n"])
    whole, grad = loss_and_gradient(batch.logits, batch.labels, target, batch.teacher, batch.side)
    parts = [
        loss_and_gradient(batch.logits[r], batch.labels[r], target, batch.teacher[r], batch.side[r])
        for r in (slice(0, cut), slice(cut, None))
    ]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(torch.cat([parts[0][1], parts[1][1]]), grad, rtol=0, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(rows, sizes)
def test_padding_with_ignored_tokens_changes_nothing(row, size):
    batch = make_batch(**size)
    target = make_target(row[0], **row[1])
    n = size["n"]

    def padded(x):
        return torch.cat([x, x[:1]])

    labels = torch.cat([batch.labels, torch.tensor([-100])])
    teacher = TopK(*(padded(t) for t in (batch.teacher.ids, batch.teacher.logps, batch.teacher.label_logp)))
    loss, grad = loss_and_gradient(batch.logits, batch.labels, target, batch.teacher, batch.side)
    loss2, grad2 = loss_and_gradient(padded(batch.logits), labels, target, teacher, batch.side.map(padded))
    torch.testing.assert_close(loss, loss2, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, grad2[:n], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "hparams"), CASES, ids=IDS)
@pytest.mark.parametrize("size", [30.0, 1e4])
def test_finite_in_float32_at_the_extremes(name, hparams, size):
    """p_y → 0 and → 1, logits up to ±1e4, −inf slots, y outside the slots, no live slot at all."""
    v = 8
    logits = torch.zeros(4, v)
    logits[0, 2], logits[1, 2], logits[2, 2], logits[3, 5] = size, size, -size, size
    logits[1, 1] = -size
    labels = torch.tensor([2, 1, 2, 0])  # p_y = 1, 0, 0, 0
    ids = torch.tensor([[2, 3], [2, 3], [0, 0], [6, 7]])
    ninf = float("-inf")
    logps = torch.tensor([[-1e-6, -14.0], [-0.7, -0.8], [ninf, ninf], [-0.7, ninf]])
    teacher = TopK(ids, logps, torch.tensor([-1e-6, -20.0, -3.0, -9.0]))
    side = SideInputs(
        ref_logp=torch.full((4,), -1.0),
        old_logp=torch.full((4,), -1.0),
        critical=torch.ones(4),
        document=torch.arange(4),
    )
    loss, grad = loss_and_gradient(logits, labels, make_target(name, **hparams), teacher, side)
    assert torch.isfinite(loss)
    assert torch.isfinite(grad).all()
