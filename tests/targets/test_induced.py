"""Any loss → Q."""

import pytest
import torch
from cases import make_batch
from torch.nn.functional import cross_entropy

from qsft import LossTarget, induced_target, make_target, target_loss
from qsft.targets.view import TokenView


def minus_p(logits, labels):
    """1 − p_y, not detached: its gradient is the p-loss's."""
    return 1 - logits.softmax(-1).gather(-1, labels[:, None])[:, 0]


def test_cross_entropy_induces_the_one_hot():
    z, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 5, 2, 2])
    q = induced_target(lambda z, y: cross_entropy(z, y, reduction="none"), z, y)
    torch.testing.assert_close(q, torch.nn.functional.one_hot(y, 6).double())


def test_one_minus_p_induces_the_p_loss_target():
    batch = make_batch(ignored=())
    q = induced_target(minus_p, batch.logits, batch.labels)
    dft = make_target("dft")(TokenView.of(batch.logits, batch.labels)).dense(batch.logits.softmax(-1))
    torch.testing.assert_close(q, dft)


def test_a_loss_as_target_keeps_its_value_and_gradient():
    batch = make_batch()
    z = batch.logits.clone().requires_grad_()
    keep = batch.labels >= 0
    loss = target_loss(z, batch.labels, LossTarget(minus_p))
    assert loss.item() == pytest.approx(minus_p(batch.logits[keep], batch.labels[keep]).sum().item())
    (grad,) = torch.autograd.grad(loss, z)
    z2 = batch.logits.clone().requires_grad_()
    (expected,) = torch.autograd.grad(target_loss(z2, batch.labels, make_target("dft")), z2)
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-12)


def test_a_loss_that_averages_raises_an_error():
    with pytest.raises(ValueError, match="one value per token"):
        induced_target(lambda z, y: cross_entropy(z, y), torch.zeros(2, 3), torch.tensor([0, 1]))


def test_record_names_the_loss():
    assert LossTarget(minus_p).record() == {"loss": "minus_p"}
