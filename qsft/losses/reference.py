"""The specification: dense CE(Q, p) with plain autograd, in the dtype given. Slow and obvious; fused.py must agree."""

from jaxtyping import Float, Int
from torch import Tensor

from qsft.losses.label_tokens import check_lengths
from qsft.targets.target import Target, check_is_target
from qsft.targets.view import IGNORED, Full, SideInputs, TokenView, TopK


def target_loss(
    logits: Float[Tensor, "N V"],
    labels: Int[Tensor, " N"],
    target: Target,
    teacher: TopK | Full | None = None,
    *,
    side: SideInputs | None = None,
) -> Float[Tensor, ""]:
    """The sum of scale·CE(Q, p) over label tokens. Labels of −100 are ignored.

    The value is scale·(γ·CE(δ, p) + Σ mass·CE(R, p)), without the terms of the student itself, or the value that the
    target reports instead. The gradient is scale·(p − Q). Teacher and side inputs have one entry per row of `logits`.

    >>> import torch
    >>> from qsft.targets.registry import make_target
    >>> z, y = torch.zeros(2, 4), torch.tensor([1, -100])
    >>> round(target_loss(z, y, make_target("sft")).item(), 4)   # ln 4
    1.3863
    """
    check_is_target(target)
    check_lengths(logits, labels, teacher, side)
    keep = labels != IGNORED
    logits = logits[keep]
    labels = labels[keep]
    teacher = None if teacher is None else teacher[keep].to(logits.device, logits.dtype).within(logits.shape[-1])
    side = (side or SideInputs())[keep]
    fixed = TokenView.of(logits.detach(), labels, teacher, side)
    q = target(
        TokenView(fixed.logits, labels, fixed.lse, teacher, target.prepare(side, teacher, lambda: fixed.label_logp))
    )
    view = TokenView.of(logits, labels, teacher)
    per_token = q.scale * q.cross_entropy(view)
    if q.value is not None:
        per_token = per_token + (q.value - per_token).detach()
    return per_token.sum()
