"""Special cases with a known answer."""

from dataclasses import replace

import pytest
import torch
from cases import make_batch

from qsft.losses.reference import target_loss
from qsft.targets.registry import make_target
from qsft.targets.view import Full, SideInputs, TokenView, TopK


def gradient(batch, target, teacher=None, side=None):
    z = batch.logits.clone().requires_grad_()
    loss = target_loss(z, batch.labels, target, teacher or batch.teacher, side=side or batch.side)
    return torch.autograd.grad(loss, z)[0]


def same(batch, a, b, **kwargs):
    torch.testing.assert_close(gradient(batch, a, **kwargs), gradient(batch, b, **kwargs), rtol=0, atol=1e-12)


@pytest.fixture
def batch():
    return make_batch()


def test_p_loss_target_in_closed_form(batch):
    view = TokenView.of(batch.logits, batch.labels.clamp(min=0))
    p = batch.logits.softmax(-1)
    q = make_target("dft")(view).dense(p)
    py = p.gather(-1, view.labels[:, None])
    expected = (1 - py) * p
    expected.scatter_(-1, view.labels[:, None], 2 * py - py**2)
    torch.testing.assert_close(q, expected)


def test_alpha_zero_is_sft(batch):
    same(batch, make_target("beyond_log", alpha=0.0), make_target("sft"))


def test_alpha_one_is_dft(batch):
    same(batch, make_target("beyond_log", alpha=1.0), make_target("dft"))


def test_gem_with_beta_one_is_sft(batch):
    same(batch, make_target("gem", beta=1.0), make_target("sft"))


def test_target_without_trust_at_eta_one_is_kd(batch):
    from qsft.targets.residual import Guided
    from qsft.targets.target import Target
    from qsft.targets.trust import Constant

    for tail in ("drop", "ghost"):
        same(batch, Target(Constant(0.0), Guided(1.0, tail)), make_target("kd", tail=tail))


@pytest.mark.parametrize("tail", ["drop", "ghost"])
def test_eta_zero_is_dft(batch, tail):
    same(batch, make_target("target_sft", eta=0.0, tail=tail), make_target("dft"))


def test_ghost_is_continuous_in_eta_at_zero(batch):
    """eta -> 0 with the ghost tends to the p-loss; with drop it does not (off-support tokens are pushed down)."""
    dft = gradient(batch, make_target("dft"))
    ghost = gradient(batch, make_target("target_sft", eta=1e-9, tail="ghost"))
    drop = gradient(batch, make_target("target_sft", eta=1e-9, tail="drop"))
    torch.testing.assert_close(ghost, dft, rtol=0, atol=1e-7)
    assert (drop - dft).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["kd", "kd_hybrid", "sft_kl", "asft", "target_sft", "target_sft_constant"])
def test_whole_vocabulary_with_drop_is_the_full_teacher(batch, name):
    logps, ids = batch.full_teacher.topk(batch.full_teacher.shape[-1])
    truncated = gradient(batch, make_target(name), TopK(ids, logps))
    torch.testing.assert_close(
        truncated, gradient(batch, make_target(name), Full(batch.full_teacher)), rtol=0, atol=1e-12
    )


def test_label_outside_the_support_gets_no_gradient_under_drop(batch):
    """g_y = −(1−p_y)·R_y, so y ∉ S means exactly 0."""
    grad = gradient(batch, make_target("target_sft"))
    outside = [
        i
        for i, y in enumerate(batch.labels.tolist())
        if y >= 0 and not batch.teacher.empty[i] and y not in batch.teacher.ids[i][batch.teacher.live[i]].tolist()
    ]
    assert outside
    for i in outside:
        assert abs(grad[i, batch.labels[i]]) < 1e-15


def test_psft_keeps_small_ratios_and_stops_large_ones():
    z = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([1, 1])
    p_y = torch.tensor([0.25, 0.25], dtype=torch.float64)
    old = (p_y / torch.tensor([0.6, 1.3], dtype=torch.float64)).log()
    loss = target_loss(z, labels, make_target("psft"), side=SideInputs(old_logp=old))
    (grad,) = torch.autograd.grad(loss, z)
    expected = 0.6 * (torch.full((4,), 0.25, dtype=torch.float64) - torch.eye(4, dtype=torch.float64)[1])
    torch.testing.assert_close(grad[0], expected)
    assert grad[1].abs().max() == 0


@pytest.mark.parametrize("documents", [1, 2, 9])
def test_iw_sft_at_the_reference_is_sft(batch, documents):
    student = batch.logits.log_softmax(-1).gather(-1, batch.labels.clamp(min=0)[:, None])[:, 0]
    side = SideInputs(ref_logp=student, document=torch.arange(9) % documents)
    same(batch, make_target("iw_sft"), make_target("sft"), side=side)


def test_iw_sft_takes_the_reference_from_the_cache(batch):
    """A cached teacher knows the label's own log-prob: that is iw_sft's reference."""
    cached = SideInputs(document=batch.side.document)
    given = SideInputs(document=batch.side.document, ref_logp=batch.teacher.label_logp)
    a = gradient(batch, make_target("iw_sft"), side=cached)
    torch.testing.assert_close(a, gradient(batch, make_target("iw_sft"), side=given), rtol=0, atol=1e-15)


def test_iw_sft_takes_a_fixed_weight(batch):
    side = SideInputs(weight=torch.full((9,), 2.0, dtype=torch.float64))
    twice = gradient(batch, make_target("iw_sft"), side=side)
    torch.testing.assert_close(twice, 2 * gradient(batch, make_target("sft")), rtol=0, atol=1e-12)


def test_reward_form_is_a_sharpened_geometric_form(batch):
    """π_θ·π_T^η = (π_θ^(1−η')·π_T^η')^(1+η) with η' = η/(1+η)."""
    eta = 0.7
    teacher = batch.teacher
    view = TokenView.of(batch.logits, batch.labels.clamp(min=0), teacher)
    reward = make_target("target_sft", eta=eta, form="reward").residual(view)[0][1].probs
    geometric = make_target("target_sft", eta=eta / (1 + eta)).residual(view)[0][1].probs
    sharpened = geometric ** (1 + eta)
    some = ~teacher.empty
    expected = (sharpened / sharpened.sum(-1, keepdim=True))[some]
    torch.testing.assert_close(reward[some], expected)


def test_one_hot_teacher_makes_kd_sft(batch):
    labels = batch.labels.clamp(min=0)
    teacher = TopK(labels[:, None], torch.zeros(9, 1, dtype=torch.float64))
    torch.testing.assert_close(
        gradient(batch, make_target("kd"), teacher), gradient(batch, make_target("sft")), rtol=0, atol=1e-12
    )


def test_label_smoothing_leaves_padding_entries_out(batch):
    side = SideInputs(vocab_size=20)
    grad = gradient(batch, make_target("label_smoothing", lam=1.0), side=side)
    p = batch.logits.softmax(-1)
    keep = batch.labels >= 0
    torch.testing.assert_close(grad[keep, 20:], p[keep, 20:])  # no target mass there: only pushed down
    torch.testing.assert_close(grad[keep, :20], p[keep, :20] - 1 / 20)


def test_values_of_sft_and_dft_are_those_of_the_literature(batch):
    keep = batch.labels >= 0
    logp = batch.logits.log_softmax(-1)[keep].gather(-1, batch.labels[keep][:, None])[:, 0]
    assert target_loss(batch.logits, batch.labels, make_target("sft")).item() == pytest.approx(-logp.sum().item())
    dft = target_loss(batch.logits, batch.labels, make_target("dft")).item()
    assert dft == pytest.approx(-(logp * logp.exp()).sum().item())


def test_profit_leaves_out_a_token_of_exactly_tau():
    view = TokenView.of(torch.zeros(1, 4), torch.tensor([1]))
    assert make_target("profit", tau=0.25)(view).gamma.item() == 0
    assert make_target("beyond_log", alpha=0.0, tau=0.25)(view).gamma.item() == 1


def test_the_two_readings_of_the_constant_branch_tend_to_the_p_loss_and_to_sft(batch):
    for name, limit in (("target_sft_constant", "dft"), ("target_sft_mixture", "sft")):
        near = gradient(batch, make_target(name, c=1e-9))
        torch.testing.assert_close(near, gradient(batch, make_target(limit)), rtol=0, atol=1e-7)


def test_label_smoothing_with_more_tokens_than_head_entries_still_sums_to_one():
    """A tokenizer of 7 tokens over a head of 6 rows: Q summed to 0.857."""
    view = TokenView.of(torch.randn(2, 6), torch.tensor([1, 2]), side=SideInputs(vocab_size=7))
    q = make_target("label_smoothing", lam=1.0)(view).dense(view.logits.softmax(-1))
    torch.testing.assert_close(q.sum(-1), torch.ones(2))


@pytest.mark.parametrize("name", ["kd", "target_sft"])
def test_a_stored_tail_is_taken_instead_of_what_the_slots_leave(batch, name):
    target = make_target(name, tail="ghost")
    rest = torch.log1p(-batch.teacher.logps.exp().sum(-1))
    stored = replace(batch.teacher, log_tail=rest)
    torch.testing.assert_close(gradient(batch, target, stored), gradient(batch, target), rtol=0, atol=1e-12)
    double = replace(batch.teacher, log_tail=rest + 1.0)
    assert (gradient(batch, target, double) - gradient(batch, target)).abs().max() > 1e-3


def test_a_stored_tail_is_renormalized_with_its_slots():
    teacher = TopK(torch.tensor([[0, 9], [1, 2]]), torch.tensor([[0.5, 0.25], [0.5, 0.125]]).log(), None,
                   torch.tensor([0.25, 0.375]).log())  # fmt: skip
    kept = teacher[torch.tensor([1, 0])].to(torch.device("cpu"), torch.float64).within(8)
    torch.testing.assert_close(kept.log_outside.exp(), torch.tensor([0.375, 0.25 / 0.75]).double())
    torch.testing.assert_close(kept.logps.exp().sum(-1) + kept.log_outside.exp(), torch.ones(2).double())


def test_what_is_left_of_one_is_exact_where_the_model_is_almost_sure():
    view = TokenView(torch.tensor([[0.0, -21.0]]), torch.tensor([0]), torch.tensor([1e-9]))  # 1.0 − p_y would be 0
    assert make_target("target_sft").trust.rest(view).item() == pytest.approx(1e-9)


def test_trust_never_exceeds_one_where_the_student_knows_nothing():
    sizes = range(2, 200)
    gammas = [make_target("eaft", k=k)(TokenView.of(torch.zeros(1, k), torch.tensor([0]))).gamma.item() for k in sizes]
    assert max(gammas) == 1.0  # unclamped, rounding gives 1.0000001 for some k
    assert min(gammas) == pytest.approx(1.0)


def test_thresholds_keep_what_equals_them():
    view = TokenView.of(torch.zeros(1, 4), torch.tensor([1]), side=SideInputs(old_logp=torch.tensor([0.125]).log()))
    below = make_target("beyond_log", alpha=0.0, tau=0.25, keep="below")(view)
    assert below.gamma.item() == 1
    assert make_target("psft", eps=1.0)(view).scale.item() == pytest.approx(2.0)  # r = 1 + ε


def test_tokens_without_any_probability_are_harmless():
    """Logits of −inf (a banned token): 0·−inf would be NaN in the entropy, the blend and the cross-entropy."""
    logits = torch.tensor([[0.0, 1.0, float("-inf"), float("-inf")]])
    teacher = TopK(torch.tensor([[0, 1]]), torch.tensor([[0.5, 0.5]]).log())
    view = TokenView.of(logits, torch.tensor([0]), teacher)
    assert torch.isfinite(make_target("eaft", k=4)(view).gamma).all()
    banned = TokenView.of(logits, torch.tensor([0]), TopK(torch.tensor([[0, 2]]), torch.tensor([[0.5, 0.5]]).log()))
    (_, _), (_, sparse), *_ = make_target("target_sft", eta=1.0)(banned).terms
    torch.testing.assert_close(sparse.probs, torch.tensor([[0.5, 0.5]]))
    empty = TokenView.of(logits, torch.tensor([0]), TopK(torch.tensor([[0, 2]]), torch.tensor([[0.0, float("-inf")]])))
    (_, _), (_, sparse), *_ = make_target("kd")(empty).terms
    assert torch.isfinite(sparse.cross_entropy(empty)).all()
