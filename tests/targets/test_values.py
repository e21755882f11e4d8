"""The reported value of every named target is its published loss, computed here densely and independently."""

import pytest
import torch
from cases import make_batch
from published_losses import published

from qsft.losses.fused import fused_target_loss
from qsft.losses.reference import target_loss
from qsft.targets.registry import TARGETS, make_target
from qsft.targets.residual import Guided, RewardShaped, SelfPrior
from qsft.targets.target import Target
from qsft.targets.trust import BetaTrust, Column, Prob
from qsft.targets.view import SideInputs, TopK

CASES = [
    ("sft", {}),
    *[("profit", {"tau": tau}) for tau in (0.05, 0.5)],
    *[("eaft", {"k": k, "alpha": alpha}) for k, alpha in ((20, 1.0), (4, 2.0))],
    *[("iw_sft", {"clip": clip, "ratio": ratio}) for clip, ratio in ((16.0, "mean"), (1.05, "mean"), (16.0, "raw"))],
    ("cft", {}),
    ("label_smoothing", {"lam": 0.1}),
    *[("gem", {"beta": 0.7, "lam": lam}) for lam in (0.4, 1.0)],
    *[("target_sft", {"eta": eta, "tail": tail}) for eta in (0.5, 1.0) for tail in ("drop", "ghost")],
    *[("target_sft_constant", {"c": 0.3, "eta": 0.5, "tail": tail}) for tail in ("drop", "ghost")],
    *[("target_sft_mixture", {"c": 0.3, "eta": 0.5, "tail": tail}) for tail in ("drop", "ghost")],
    ("dft", {}),
    ("beyond_log", {"alpha": 0.5}),
    ("beyond_log", {"alpha": 2.0}),
    ("psft", {"eps": 0.28}),
    *[("kd", {"tail": tail}) for tail in ("drop", "ghost")],
    *[("kd_hybrid", {"c": 0.8, "tail": tail}) for tail in ("drop", "ghost")],
    *[("sft_kl", {"lam": 0.3, "tail": tail}) for tail in ("drop", "ghost")],
    *[("asft", {"lam": 0.3, "tail": tail}) for tail in ("drop", "ghost")],
]


def test_the_value_of_every_named_target_is_tried():
    assert {name for name, _ in CASES} == set(TARGETS)


@pytest.mark.parametrize(("name", "hparams"), CASES, ids=lambda value: str(value))
def test_the_value_is_the_published_loss(name, hparams):
    batch = make_batch()
    expected = published(name, batch, hparams)
    value = target_loss(
        batch.logits.double(), batch.labels, make_target(name, **hparams), batch.teacher, side=batch.side
    )
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "hparams"), CASES, ids=lambda value: str(value))
def test_the_fused_head_reports_the_value_of_the_reference(name, hparams, dtype):
    batch = make_batch()
    torch.manual_seed(0)
    hidden = torch.randn(len(batch.labels), 8).to(dtype)
    weight = torch.randn(batch.logits.shape[-1], 8).to(dtype)
    target = make_target(name, **hparams)
    fused = fused_target_loss(hidden, weight, batch.labels, target, batch.teacher, side=batch.side)
    # The head's own logits: bf16 products are rounded as F.linear rounds them.
    logits = (hidden @ weight.t()).double()
    reference = target_loss(logits, batch.labels, target, batch.teacher, side=batch.side)
    torch.testing.assert_close(fused.loss.double(), reference, rtol=1e-4 if dtype != torch.float64 else 1e-9, atol=1e-4)
    sums = fused.metrics
    assert sums["loss"] == pytest.approx(float(fused.loss), rel=1e-6)


def test_cross_entropies_stay_in_the_log():
    """label_loss and residual_loss are cross-entropies whatever the value is."""
    batch = make_batch()
    hidden = torch.eye(len(batch.labels), dtype=torch.float64)
    weight = batch.logits.double().t().contiguous()
    out = fused_target_loss(hidden, weight, batch.labels, make_target("kd"), batch.teacher, side=batch.side).metrics
    assert out["residual_loss"] > out["loss"]  # by the teacher's entropy


def test_beyond_log_tends_to_sft():
    batch = make_batch()
    sft = target_loss(batch.logits, batch.labels, make_target("sft"))
    limit = target_loss(batch.logits, batch.labels, make_target("beyond_log", alpha=0.0))
    small = target_loss(batch.logits, batch.labels, make_target("beyond_log", alpha=1e-7))
    torch.testing.assert_close(limit, sft)
    torch.testing.assert_close(small, sft, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_names_its_loss_and_its_value(name):
    from qsft.targets.table import describe

    text = describe(name)
    assert TARGETS[name].loss in text
    assert "value" in text


def test_psft_is_evaluated_by_the_negative_log_likelihood():
    assert make_target("psft").for_evaluation == make_target("sft")
    assert make_target("dft").for_evaluation == make_target("dft")


# ---- a trust from evidence, a residual by reward ----


def gradient(logits, labels, target, teacher=None, side=None):
    z = logits.detach().clone().requires_grad_()
    target_loss(z, labels, target, teacher, side=side).backward()
    return z.grad


def check_fused_gradient(logits, labels, target, side=None):
    """The fused head's gradient is the reference's: with unit vectors as hidden states the logits are the weight."""
    hidden = torch.eye(len(labels), dtype=torch.float64).requires_grad_()
    fused_target_loss(hidden, logits.t().contiguous(), labels, target, side=side).loss.backward()
    torch.testing.assert_close(hidden.grad, gradient(logits, labels, target, side=side) @ logits.t())


def test_beta_trust_with_p_and_its_complement_is_dft():
    batch = make_batch()

    def complement(view):
        return Prob(1.0).rest(view)

    evidence = Target(BetaTrust(alpha=Prob(1.0), beta=complement), SelfPrior())
    torch.testing.assert_close(
        gradient(batch.logits, batch.labels, evidence), gradient(batch.logits, batch.labels, make_target("dft"))
    )


def test_beta_trust_from_columns_of_the_data():
    batch = make_batch()
    n = len(batch.labels)
    side = SideInputs(columns={"votes_for": torch.full((n,), 3.0), "votes_against": torch.full((n,), 1.0)})
    target = Target(BetaTrust(alpha=Column("votes_for"), beta=Column("votes_against")), SelfPrior())
    assert target.needs == {"column:votes_for", "column:votes_against"}
    expected = 0.75 * gradient(batch.logits, batch.labels, make_target("sft"))
    torch.testing.assert_close(gradient(batch.logits, batch.labels, target, side=side), expected)
    check_fused_gradient(batch.logits, batch.labels, target, side=side)
    with pytest.raises(ValueError, match="reads the column 'votes_for'"):
        gradient(batch.logits, batch.labels, target)


def log_teacher(eta):
    def reward(view):
        return view.teacher.ids, eta * view.teacher.logps

    return reward


def test_a_reward_that_is_the_teachers_log_prob_is_the_reward_form():
    batch = make_batch()
    full = TopK(batch.teacher.ids, batch.teacher.logps.clamp(min=-30.0))  # no empty slots
    shaped = Target(Prob(1.0), RewardShaped(log_teacher(0.7), outside="drop"))
    guided = Target(Prob(1.0), Guided(0.7, form="reward"))
    torch.testing.assert_close(
        gradient(batch.logits, batch.labels, shaped, full), gradient(batch.logits, batch.labels, guided, full)
    )


@pytest.mark.parametrize("tau", [0.5, 2.0])
def test_a_reward_keeps_the_tokens_outside_its_set(tau):
    """π̃ ∝ π_θ·exp(r/τ) with r = 0 outside the set, against the same written out over the vocabulary."""
    torch.manual_seed(0)
    z = torch.randn(5, 11, dtype=torch.float64)
    y = torch.tensor([1, 4, 0, 10, 3])
    ids = torch.stack([torch.randperm(11)[:3] for _ in range(5)])
    rewards = torch.randn(5, 3, dtype=torch.float64)

    def written_out(view):
        r = torch.zeros_like(view.logits).scatter(-1, ids, rewards)
        return (view.logits + r / tau).softmax(dim=-1)

    shaped = Target(Prob(1.0), RewardShaped(lambda view: (ids, rewards), tau))
    dense = Target(Prob(1.0), written_out)
    torch.testing.assert_close(gradient(z, y, shaped), gradient(z, y, dense))
    check_fused_gradient(z, y, shaped)


def test_gems_weight_of_the_regularizer():
    torch.manual_seed(0)
    z = torch.randn(6, 9, dtype=torch.float64)
    y = torch.randint(9, (6,))
    p = z.softmax(dim=-1)
    q = (z / 0.7).softmax(dim=-1)
    delta = torch.nn.functional.one_hot(y, 9).double()
    for lam in (0.0, 0.4, 1.0):
        expected = (1 - lam) * p - delta + lam * q
        torch.testing.assert_close(gradient(z, y, make_target("gem", lam=lam)), expected)
        check_fused_gradient(z, y, make_target("gem", lam=lam))
