"""Reported values: what the log's `loss` shows for a target whose published loss is not scale·CE(Q, p).

A value is any callable `(view, mixture) -> [N]`, the loss of each token as it is reported. It does not change the
gradient, which is always scale·(p − Q).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.targets.scale import ClippedRatio
from qsft.targets.trust import Threshold
from qsft.targets.view import TokenView

if TYPE_CHECKING:
    from qsft.targets.target import Mixture


@dataclass(frozen=True)
class KLToResidual:
    """scale·(γ·CE(δ, p) + (1−γ)·KL(π̃‖p)): the residual's cross-entropy without its constant entropy.

    KL(π̃‖p) is exact where π̃ is known over the vocabulary, or restricted to the teacher's slots (tail="drop"). With
    tail="ghost" everything outside the slots counts as one outcome, which gives a lower bound.
    """

    formula: ClassVar[str] = "scale·(γ·CE(δ, p) + (1−γ)·KL(π̃‖p))"

    def __call__(self, view: TokenView, mixture: "Mixture") -> Float[Tensor, " N"]:
        residual = [(mass, dist) for mass, dist in mixture.terms if not dist.is_label]
        total = torch.stack([mass for mass, _ in residual]).sum(dim=0)
        # (1−γ)·H(π̃) for parts with masses m and disjoint supports: Σ −m·log(m/Σm) + Σ m·H(part)
        entropy: Tensor = -torch.special.entr(total)
        for mass, dist in residual:
            entropy = entropy + torch.special.entr(mass.clamp(min=0.0)) + mass * dist.entropy()
        return mixture.scale * (mixture.cross_entropy(view) - entropy)


@dataclass(frozen=True)
class PowerLoss:
    """(1 − p_y^α)/α, which tends to −log p_y for α → 0; 0 on tokens that a gate leaves out."""

    alpha: float
    gate: Threshold | None = None

    def __call__(self, view: TokenView, mixture: "Mixture") -> Float[Tensor, " N"]:
        if self.alpha == 0.0:
            loss = -view.label_logp
        else:
            loss = -torch.expm1(self.alpha * view.label_logp) / self.alpha
        return loss if self.gate is None else loss * self.gate(view)

    @property
    def formula(self) -> str:
        loss = "−log p_y" if self.alpha == 0.0 else f"(1 − p_y^{self.alpha:g})/{self.alpha:g}"
        return loss if self.gate is None else f"{loss}·{self.gate.formula}"


@dataclass(frozen=True)
class ClippedObjective:
    """−min(r, 1+ε) with r = p_y/π_old: PPO's objective with advantage 1, whose lower clip never acts."""

    ratio: ClippedRatio

    def __call__(self, view: TokenView, mixture: "Mixture") -> Float[Tensor, " N"]:
        return -self.ratio.unclipped(view).clamp(max=1.0 + self.ratio.eps)

    @property
    def formula(self) -> str:
        return f"−min(r, {1 + self.ratio.eps:g}), r = p_y/π_old"
