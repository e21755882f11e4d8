"""Fixed points: the distribution p* at which a target's expected gradient vanishes.

At one context with label distribution d and teacher T that gradient is Σ_y d_y·scale·(p − Q(y)). For Target-SFT it
vanishes where p_v = d_v·p_v + C·R_v, with R ∝ p^(1−η)·T^η and C = Σ_y d_y·(1−p_y), so p* ∝ T·(1−d)^(−1/η): a product of
experts, where distillation is a mixture.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.targets.residual import Guided, SelfPrior, Teacher, Tempered, UniformPrior
from qsft.targets.target import Target
from qsft.targets.trust import Constant, Prob, SignedTrust


def fixed_point(
    target: Target, d: Float[Tensor, " V"], teacher: Float[Tensor, " V"] | None = None
) -> Float[Tensor, " V"] | None:
    """The fixed point p* for label distribution `d` and a full `teacher` distribution; None if no closed form is known.

    sft: d · kd: T · kd_hybrid: cT+(1−c)d · label smoothing: λ/V+(1−λ)d · sft_kl: (d+λT)/(1+λ) · gem: ∝ d^β
    target_sft: ∝ T·(1−d)^(−1/η)

    >>> from qsft.targets.registry import make_target
    >>> fixed_point(make_target("sft"), torch.tensor([0.25, 0.75]))
    tensor([0.2500, 0.7500])
    """
    match target.trust, target.residual:
        case Constant(1.0), None if isinstance(target.scale, Constant):
            return d
        case Constant(gamma), Teacher(_, temperature) if teacher is not None:
            return gamma * d + (1.0 - gamma) * _normalized(teacher ** (1.0 / temperature))
        case Constant(gamma), UniformPrior():
            return gamma * d + (1.0 - gamma) / d.numel()
        case SignedTrust(), Tempered(beta, "linear"):
            return _normalized(d**beta)
        case Prob(1.0), Guided(eta, _, "geometric") if eta > 0 and teacher is not None:
            return _normalized(teacher * (1.0 - d) ** (-1.0 / eta))
        case Constant(_), SelfPrior():
            return d
    return None


def _normalized(weights: Float[Tensor, " V"]) -> Float[Tensor, " V"]:
    """weights/Σ; a weight of ∞ (a label that always occurs) takes everything."""
    infinite = torch.isinf(weights)
    weights = torch.where(infinite.any(), infinite.to(weights.dtype), weights)
    return weights / weights.sum()
