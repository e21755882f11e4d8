"""The published loss of every named target from full logits in float64, written without the code under test."""

import math

import torch


def published(name, batch, hparams):
    """Σ over tokens of the published loss, from full logits in float64."""
    keep = batch.labels != -100
    z = batch.logits[keep].double()
    y = batch.labels[keep]
    logp = z.log_softmax(dim=-1)
    ly = logp.gather(-1, y[:, None])[:, 0]
    p = ly.exp()
    nll = -ly
    side = batch.side[keep]
    teacher = batch.teacher[keep]
    if name == "sft":
        return nll.sum()
    if name == "dft":
        return (p * nll).sum()
    if name == "beyond_log":
        return ((1 - p ** hparams["alpha"]) / hparams["alpha"]).sum()
    if name == "profit":
        return ((p > hparams["tau"]) * nll).sum()
    if name == "eaft":
        top = logp.exp().sort(dim=-1, descending=True).values[:, : hparams["k"]]
        top = top / top.sum(dim=-1, keepdim=True)
        entropy = -(top * top.log()).sum(dim=-1) / math.log(hparams["k"])
        return (entropy ** hparams["alpha"] * nll).sum()
    if name == "iw_sft":
        total = torch.zeros_like(nll)
        for document in side.document.unique():
            tokens = side.document == document
            ratio = (ly - side.ref_logp.double())[tokens]
            exponent = ratio.sum() if hparams["ratio"] == "raw" else ratio.mean()
            total[tokens] = nll[tokens] * min(math.exp(exponent), hparams["clip"])
        return total.sum()
    if name == "cft":
        return (side.critical * nll).sum()
    if name == "label_smoothing":
        return ((1 - hparams["lam"]) * nll - hparams["lam"] * logp.mean(dim=-1)).sum()
    if name == "gem":
        q = (z / hparams["beta"]).softmax(dim=-1)
        return (nll + hparams["lam"] * (q * logp).sum(dim=-1)).sum()
    if name == "psft":
        r = (ly - side.old_logp.double()).exp()
        eps = hparams["eps"]
        return -torch.minimum(r, r.clamp(1 - eps, 1 + eps)).sum()
    if name.startswith("target_sft"):
        guided = guided_cross_entropy(logp, teacher, hparams["eta"], hparams["tail"])
        gamma = {"target_sft": p, "target_sft_constant": p, "target_sft_mixture": 1 - hparams.get("c", 0.0)}[name]
        weight = 1 - p if name == "target_sft" else hparams["c"]
        return (gamma * nll + weight * guided).sum()
    # A truncated teacher: its probabilities on the slots, and for `ghost` the rest as one outcome. Where the teacher is
    # missing the residual is the student itself, which adds nothing.
    kl = torch.zeros_like(nll)
    for n in range(len(y)):
        slots = {}
        for token, value in zip(teacher.ids[n].tolist(), teacher.logps[n].double().tolist(), strict=True):
            if value > -math.inf:
                slots[token] = slots.get(token, 0.0) + math.exp(value)
        if not slots:
            continue
        rest = 0.0
        if hparams["tail"] == "ghost":
            rest = 1 - sum(slots.values()) if teacher.log_tail is None else math.exp(float(teacher.log_tail[n]))
        total = sum(slots.values()) + rest
        for token, mass in slots.items():
            kl[n] += mass / total * (math.log(mass / total) - logp[n, token])
        if rest > 0:
            outside = [logp[n, token] for token in range(z.shape[-1]) if token not in slots]
            kl[n] += rest / total * (math.log(rest / total) - torch.stack(outside).logsumexp(dim=0))
    if name == "kd":
        return kl.sum()
    if name == "kd_hybrid":
        return ((1 - hparams["c"]) * nll + hparams["c"] * kl).sum()
    if name == "sft_kl":
        return (nll + hparams["lam"] * kl).sum()
    if name == "asft":
        return (p * nll + hparams["lam"] * kl).sum()
    raise AssertionError(name)


def guided_cross_entropy(logp, teacher, eta, tail):
    """CE(π̃, p) with π̃ ∝ π_θ^(1−η)·π_T^η on the slots; for `ghost` everything outside them is one outcome."""
    result = torch.zeros(len(logp), dtype=torch.float64)
    for n in range(len(logp)):
        slots = {}
        for token, value in zip(teacher.ids[n].tolist(), teacher.logps[n].double().tolist(), strict=True):
            if value > -math.inf:
                slots[token] = value
        if not slots:
            continue  # π̃ is the student itself
        mine = [float(logp[n, token]) for token in slots]
        theirs = list(slots.values())
        if tail == "ghost":
            mine.append(math.log(1 - sum(map(math.exp, mine))))
            theirs.append(math.log(1 - sum(map(math.exp, theirs))))
        weights = [math.exp((1 - eta) * s + eta * t) for s, t in zip(mine, theirs, strict=True)]
        result[n] = -sum(w * s for w, s in zip(weights, mine, strict=True)) / sum(weights)
    return result
