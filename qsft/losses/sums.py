"""The sums behind the metrics, from what the fused head computes anyway: no extra pass over the tile."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.target import Mixture
from qsft.targets.view import EMPTY, Full, TokenView

GAMMA_BINS = 64
HIGH = 0.5  # a probability at or above counts as high
QUADRANTS = ("rescue", "filter", "agree", "student_only")  # the paper's Q1 to Q4
UNKNOWN = -1  # the quadrant of a label whose teacher probability is not known

# Sums over the label tokens; those of the second group need a teacher.
STUDENT_SUMS = (
    "tokens",
    "loss",
    "label_loss",  # the label's part of the loss ...
    "residual_loss",  # ... and the residual's
    "nll",  # −log p_y, what plain SFT would print
    "entropy",
    "top1",  # the label is the student's likeliest token
    "gamma",
    "kept",  # tokens whose label has any weight
)
TEACHER_SUMS = (
    "teacher_tokens",  # tokens with teacher log-probs
    "support_mass",  # the student's mass on the teacher's slots
    "teacher_tail",  # the teacher's mass outside its slots
    "label_in_topk",
    "teacher_disagrees",  # the teacher's likeliest token is not the label
    *QUADRANTS,
    "fallback",  # a teacher was given but not for this token: the student itself is used
)
SCALARS = (*STUDENT_SUMS, *TEACHER_SUMS)
SUM_NAMES = (*SCALARS, *(f"gamma_bin_{i}" for i in range(GAMMA_BINS)))


def quadrant(student: Any, teacher: Any, high: float = HIGH) -> Any:
    """The quadrant of a label by its two probabilities p_θ(y) and p_T(y), as an index into QUADRANTS.

    rescue: only the teacher finds it likely · filter: neither · agree: both · student_only: only the student;
    UNKNOWN where the teacher's is NaN. Numbers, arrays and tensors alike:

    >>> [QUADRANTS[quadrant(0.1, t)] for t in (0.9, 0.2)]
    ['rescue', 'filter']
    """
    index = 2 * (student >= high) + (teacher < high)
    is_known = teacher == teacher  # NaN differs from itself
    if isinstance(index, Tensor):
        return torch.where(is_known, index, UNKNOWN)
    return np.where(is_known, index, UNKNOWN)[()]


def token_sums(
    view: TokenView, q: Mixture, entropy: Float[Tensor, " N"], top1: Int[Tensor, " N"]
) -> tuple[Float[Tensor, ""], Float[Tensor, " M"]]:
    """The loss sum of these tokens and the vector of sums under SUM_NAMES."""
    label, residual = q.cross_entropies(view)
    label_loss = (label * q.scale).sum()
    residual_loss = (residual * q.scale).sum()
    loss = label_loss + residual_loss if q.value is None else q.value.sum()
    gamma = q.gamma.clamp(0.0, 1.0)
    sums = {
        "tokens": view.lse.new_full((), view.labels.numel()),  # filled on the device: new_tensor would synchronize
        "loss": loss,
        "label_loss": label_loss,
        "residual_loss": residual_loss,
        "nll": -view.label_logp.sum(),
        "entropy": entropy.sum(),
        "top1": (top1 == view.labels).sum(),
        "gamma": gamma.sum(),
        "kept": (q.gamma * q.scale != 0).sum(),
        **_teacher_sums(view),
    }
    bins = (gamma * (GAMMA_BINS - 1)).round().long().clamp(0, GAMMA_BINS - 1)  # centered: 0 and 1 are bins of their own
    histogram = (bins[:, None] == torch.arange(GAMMA_BINS, device=bins.device)).sum(dim=0)
    scalars = torch.stack([sums[name].to(view.lse.dtype) for name in SCALARS])
    return loss, torch.cat([scalars, histogram.to(view.lse.dtype)])


def _teacher_sums(view: TokenView) -> dict[str, Tensor]:
    """The sums under TEACHER_SUMS; zeros without a teacher."""
    teacher = view.teacher
    if teacher is None:
        return dict.fromkeys(TEACHER_SUMS, view.lse.new_zeros(()))
    if isinstance(teacher, Full):
        is_given = torch.ones_like(view.labels, dtype=torch.bool)
        in_topk = is_given
        support = torch.ones_like(view.lse)
        tail = torch.zeros_like(view.lse)
        label_logp = teacher.logps.gather(-1, view.labels[:, None])[:, 0]
        best = teacher.logps.argmax(dim=-1)
    else:
        is_given = ~teacher.empty
        is_label = (teacher.ids == view.labels[:, None]) & teacher.live
        in_topk = is_label.any(dim=-1)
        support = view.logp_at(teacher.ids).masked_fill(~teacher.live, EMPTY).exp().sum(dim=-1)
        tail = teacher.log_outside.exp()
        best = teacher.ids.gather(-1, teacher.logps.argmax(dim=-1, keepdim=True))[:, 0]
        # As stored, or from the slots: a label outside them counts as unlikely.
        found = teacher.logps.masked_fill(~is_label, EMPTY).amax(dim=-1)
        label_logp = found if teacher.label_logp is None else teacher.label_logp
    label_quadrant = quadrant(view.label_logp.exp(), label_logp.exp())
    return {
        "teacher_tokens": is_given.sum(),
        "support_mass": torch.where(is_given, support, 0.0).sum(),
        "teacher_tail": torch.where(is_given, tail, 0.0).sum(),
        "label_in_topk": (is_given & in_topk).sum(),
        "teacher_disagrees": (is_given & (best != view.labels)).sum(),
        **{name: (is_given & (label_quadrant == index)).sum() for index, name in enumerate(QUADRANTS)},
        "fallback": (~is_given).sum(),
    }
