"""Scales: the factor in front of CE(Q, p), per token.

A scale is any callable `view -> scale[N]`; it may have a `formula` and `needs`, as a trust (trust.py). One that depends
on whole documents has a method `document_weights` (see `DocumentRatio`). The default is `Constant(1.0)`.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.residual import Tempered
from qsft.targets.trust import PerToken
from qsft.targets.view import SideInputs, TokenView
from qsft.validation import check_choice, check_range


@dataclass(frozen=True)
class ProbPlusConstant:
    """scale = p_y + λ. Without it the method would be another: up to 1/λ stronger on unlikely tokens."""

    lam: float

    def __call__(self, view: TokenView) -> PerToken:
        return view.label_logp.exp() + self.lam

    @property
    def formula(self) -> str:
        return f"p_y+{self.lam:g}"


@dataclass(frozen=True)
class DocumentRatio:
    """scale = min(π_θ/π_ref, clip) of the document's label tokens: one weight per document.

    Args:
        ratio: "mean", the geometric mean over the tokens, or "raw", the ratio of the whole sequence.
    """

    clip: float = 16.0
    ratio: str = "mean"
    needs: ClassVar[frozenset[str]] = frozenset({"reference", "ref_logp", "document"})

    def __post_init__(self) -> None:
        check_range("clip", self.clip, 0.0, open_low=True)
        check_choice("ratio", self.ratio, ("mean", "raw"))

    def __call__(self, view: TokenView) -> PerToken:
        """The weight of each token's document, as `document_weights` filled it in."""
        remedy = "Call the loss functions, which fill it in from ref_logp and document, or give weights of your own."
        return view.need("weight", "the target 'iw_sft'", remedy).to(view.lse.dtype)

    def document_weights(self, side: SideInputs, ref_logp: PerToken | None, label_logp: PerToken) -> PerToken:
        """The weight of each token's document from the log-probs of *all* its label tokens."""
        if ref_logp is None or side.document is None:
            missing = "ref_logp" if ref_logp is None else "document"
            raise ValueError(
                f"the target 'iw_sft' reads the side input {missing!r}, which was not given. Pass "
                "`side=SideInputs(ref_logp=…, document=…)`, a fixed `weight=`, or to the trainer a reference "
                '(`teacher="base"` is the student before training).'
            )
        index = _ranks(side.document)
        zeros = torch.zeros_like(label_logp)
        total = zeros.index_add(0, index, label_logp - ref_logp.to(label_logp.dtype))
        if self.ratio == "mean":
            total = total / zeros.index_add(0, index, torch.ones_like(label_logp))
        weights: PerToken = total.exp().clamp(max=self.clip)[index]
        return weights

    @property
    def formula(self) -> str:
        power = "" if self.ratio == "raw" else "^(1/tokens)"
        return f"min((π_θ/π_ref){power} per document, {self.clip:g})"


@dataclass(frozen=True)
class ClippedRatio:
    """scale = r·1[r ≤ 1+ε], r = p_y/π_old(y). With advantage +1 PPO's lower clip never acts."""

    eps: float = 0.28
    needs: ClassVar[frozenset[str]] = frozenset({"old_logp"})

    def __post_init__(self) -> None:
        check_range("eps", self.eps, 0.0)

    def __call__(self, view: TokenView) -> PerToken:
        """r, or 0 once the model has moved far enough from the old policy."""
        ratio = self.unclipped(view)
        return torch.where(ratio <= 1.0 + self.eps, ratio, 0.0)  # a product would make NaN of an infinite ratio

    def unclipped(self, view: TokenView) -> PerToken:
        """r = p_y/π_old(y)."""
        remedy = "Pass `side=SideInputs(old_logp=…)`; TargetSFTTrainer scores it at the start of every block of steps."
        old = view.need("old_logp", "the target 'psft'", remedy)
        return (view.label_logp - old.to(view.lse.dtype)).exp()

    @property
    def formula(self) -> str:
        return f"r·1[r ≤ {1 + self.eps:g}], r = p_y/π_old"


@dataclass(frozen=True)
class LogSigmoidMass:
    """scale = Σ_v u_v of GEM's logsigmoid link."""

    residual: Tempered
    formula: ClassVar[str] = "Σu"

    def __call__(self, view: TokenView) -> Float[Tensor, " N"]:
        return self.residual.weights(view).sum(dim=-1)


def _ranks(values: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The values renumbered 0, 1, 2, … in their order; unlike `torch.unique`, without a host-device synchronization."""
    order = values.argsort(stable=True)
    ordered = values[order]
    new = torch.cat([torch.zeros_like(ordered[:1]), (ordered[1:] != ordered[:-1]).to(ordered.dtype)])
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0).to(order.dtype))
