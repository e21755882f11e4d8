"""The gradient of every named target is the published one, written here on its own, densely, in float64."""

import math

import pytest
import torch
from cases import CASES, IDS, make_batch

from qsft.losses.reference import target_loss
from qsft.targets.registry import TARGETS, make_target


def published_gradient(name, h, batch):
    """∂L/∂z per row of the batch, straight from the literature's formulas; no code shared with the package."""
    z, labels = batch.logits, batch.labels
    v = z.shape[-1]
    keep = labels >= 0
    y = labels.clamp(min=0)
    p = z.exp() / z.exp().sum(-1, keepdim=True)
    delta = torch.nn.functional.one_hot(y, v).to(z.dtype)
    py = (p * delta).sum(-1, keepdim=True)
    if name in ("sft_kl", "asft", "kd", "kd_hybrid", "target_sft", "target_sft_constant", "target_sft_mixture"):
        residual = dense_residual(name, h, batch, p)
    match name:
        case "sft":
            grad = p - delta
        case "dft":
            grad = py * (p - delta)
        case "beyond_log":
            gate = torch.ones_like(py)
            if h.get("tau") is not None:
                gate = (py >= h["tau"]) if h.get("keep", "above") == "above" else (py <= h["tau"])
            grad = gate * py ** h["alpha"] * (p - delta)
        case "profit":
            grad = (py > h["tau"]) * (p - delta)
        case "eaft":
            k, alpha = h.get("k", 20), h.get("alpha", 1.0)
            top = p.sort(-1, descending=True).values[:, :k]
            top = top / top.sum(-1, keepdim=True)
            entropy = -(top * top.log()).sum(-1, keepdim=True) / math.log(k)
            grad = entropy**alpha * (p - delta)
        case "iw_sft":
            grad = document_weights(batch, py, keep, h.get("clip", 16.0), h.get("ratio")) * (p - delta)
        case "cft":
            grad = batch.side.critical[:, None] * (p - delta)
        case "psft":
            r = py / batch.side.old_logp[:, None].exp()
            grad = r * (r <= 1 + h.get("eps", 0.28)) * (p - delta)
        case "label_smoothing":
            grad = p - (1 - h["lam"]) * delta - h["lam"] / v
        case "sft_kl":
            grad = (1 + h["lam"]) * p - delta - h["lam"] * residual
        case "asft":
            grad = (py + h["lam"]) * p - py * delta - h["lam"] * residual
        case "gem":
            q = (z / h["beta"]).softmax(-1)
            if h["link"] == "linear":
                grad = q - delta
            else:
                u = q / (1 + (-0.01 * (z - (z * delta).sum(-1, keepdim=True))).exp())
                grad = u - u.sum(-1, keepdim=True) * delta
        case "kd":
            grad = p - residual
        case "kd_hybrid":
            c = h.get("c", 0.8)
            grad = p - (1 - c) * delta - c * residual
        case "target_sft":
            grad = p - py * delta - (1 - py) * residual
        case "target_sft_constant":
            grad = (py + h["c"]) * p - py * delta - h["c"] * residual
        case "target_sft_mixture":
            grad = p - (1 - h["c"]) * delta - h["c"] * residual
    return grad * keep[:, None]


def dense_residual(name, h, batch, p):
    """R over the whole vocabulary, row by row."""
    rows = []
    for i in range(len(p)):
        live = [j for j in range(batch.teacher.ids.shape[1]) if batch.teacher.logps[i, j] > -math.inf]
        if not live:
            rows.append(p[i])
            continue
        support = batch.teacher.ids[i, live]
        t = batch.teacher.logps[i, live].exp()
        a, b = 0.0, 1.0 / h.get("temperature", 1.0)
        if name.startswith("target_sft"):
            eta = h["eta"]
            if eta == 0:
                rows.append(p[i])
                continue
            a, b = (1.0 if h.get("form") == "reward" else 1.0 - eta), eta
        r = torch.zeros_like(p[i])
        r[support] = p[i, support] ** a * t**b
        if h.get("tail") == "ghost":
            outside = torch.ones_like(p[i], dtype=torch.bool)
            outside[support] = False
            p_tail, t_tail = p[i, outside].sum(), 1 - t.sum()
            r[outside] = p_tail**a * t_tail**b * p[i, outside] / p_tail
        rows.append(r / r.sum())
    return torch.stack(rows)


def document_weights(batch, py, keep, clip, ratio):
    weights = torch.zeros_like(py)
    for d in batch.side.document.unique():
        rows = (batch.side.document == d) & keep
        logs = py[rows, 0].log() - batch.side.ref_logp[rows]
        weights[rows] = min(math.exp(logs.sum() if ratio == "raw" else logs.mean()), clip)
    return weights


@pytest.mark.parametrize(("name", "hparams"), CASES, ids=IDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_is_the_published_one(name, hparams, seed):
    batch = make_batch(seed=seed)
    z = batch.logits.clone().requires_grad_()
    loss = target_loss(z, batch.labels, make_target(name, **hparams), batch.teacher, side=batch.side)
    (grad,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(grad, published_gradient(name, hparams, batch), rtol=0, atol=1e-10)
    assert grad.sum(-1).abs().max() < 1e-10
    assert grad[batch.labels == -100].abs().max() == 0


def test_every_named_target_is_tried():
    assert {name for name, _ in CASES} == set(TARGETS)


@pytest.mark.parametrize(("name", "hparams"), CASES, ids=IDS)
def test_mass_sums_to_one(name, hparams):
    """Q is a (possibly signed) distribution for every row, so the gradient's scale is all that differs."""
    from qsft.targets.view import TokenView

    batch = make_batch(ignored=())
    target = make_target(name, **hparams)
    view = TokenView.of(batch.logits, batch.labels, batch.teacher, batch.side)
    side = target.prepare(batch.side, batch.teacher, lambda: view.label_logp)
    q = target(TokenView.of(batch.logits, batch.labels, batch.teacher, side)).dense(batch.logits.softmax(-1))
    torch.testing.assert_close(q.sum(-1), torch.ones(len(q), dtype=q.dtype), rtol=0, atol=1e-10)
