"""The γ axis: how much to trust the observed token.

A trust is any callable `view -> γ[N]`. It may have a method `rest(view)` that gives 1 − γ where 1.0 − γ would lose
precision, a `formula` for the table and `needs` for what it reads. Scales (the last class group) are callables alike.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.view import SideInputs, TokenView
from qsft.validation import check_choice, check_range

PerToken = Float[Tensor, " N"]


@dataclass(frozen=True)
class Constant:
    """The same number at every token."""

    value: float = 1.0

    def __call__(self, view: TokenView) -> PerToken:
        return torch.full_like(view.lse, self.value)

    @property
    def formula(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Prob:
    """γ = p_y^α: trust a token as much as the model already believes it."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_range("alpha", self.alpha, 0.0)

    def __call__(self, view: TokenView) -> PerToken:
        return (self.alpha * view.label_logp).exp()

    def rest(self, view: TokenView) -> PerToken:
        """1 − p_y^α, exact where p_y is almost 1."""
        return -torch.expm1(self.alpha * view.label_logp)

    @property
    def formula(self) -> str:
        return "p_y" if self.alpha == 1.0 else f"p_y^{self.alpha:g}"


@dataclass(frozen=True)
class Threshold:
    """γ = 1[p_y ≥ τ] (> when strict), or 1[p_y ≤ τ] with keep="below": train on some tokens, leave the others alone."""

    tau: float
    keep: str = "above"
    strict: bool = False

    def __post_init__(self) -> None:
        check_range("tau", self.tau, 0.0, 1.0)
        check_choice("keep", self.keep, ("above", "below"))

    def __call__(self, view: TokenView) -> PerToken:
        p = view.label_logp.exp()
        kept = p >= self.tau if self.keep == "above" else p <= self.tau
        return (kept & (p != self.tau) if self.strict else kept).to(p.dtype)

    @property
    def formula(self) -> str:
        sign = ("><" if self.strict else "≥≤")[self.keep == "below"]
        return f"1[p_y {sign} {self.tau:g}]"


@dataclass(frozen=True)
class Both:
    """γ = γ₁·γ₂: one trust gated by another. Beyond-log's code averages over the tokens that its gate keeps."""

    first: Threshold
    second: Prob
    averages_kept: ClassVar[bool] = True

    def __call__(self, view: TokenView) -> PerToken:
        return self.first(view) * self.second(view)

    @property
    def formula(self) -> str:
        return f"{self.second.formula}·{self.first.formula}"


@dataclass(frozen=True)
class Entropy:
    """γ = (H/ln k)^α, H the entropy of the student's top k renormalised: trust labels where it is unsure."""

    k: int = 20
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_range("k", self.k, 2)
        check_range("alpha", self.alpha, 0.0)

    def __call__(self, view: TokenView) -> PerToken:
        """Between 0 (certain) and 1 (uniform over k); EAFT's code divides by 3.0 for k = 20, ln 20 is 2.996."""
        k = min(self.k, view.logits.shape[-1])
        logp = view.logits.topk(k, dim=-1).values.log_softmax(dim=-1)
        entropy = -(logp.exp() * logp.clamp(min=-1e30)).sum(dim=-1)
        share: PerToken = (entropy / math.log(k)).clamp(0.0, 1.0) ** self.alpha
        return share

    @property
    def formula(self) -> str:
        return f"(H_top{self.k}/ln {self.k})" + ("" if self.alpha == 1.0 else f"^{self.alpha:g}")


@dataclass(frozen=True)
class Critical:
    """γ = c_t: 1 on counterfactually critical tokens, 0 elsewhere."""

    needs: ClassVar[frozenset[str]] = frozenset({"critical"})
    formula: ClassVar[str] = "c_t"

    def __call__(self, view: TokenView) -> PerToken:
        remedy = "Add a column `critical` (0/1 per token) to the data set; `qsft curate critical` makes it."
        return view.need("critical", "the target 'cft'", remedy).to(view.lse.dtype)


@dataclass(frozen=True)
class Ratio:
    """γ = p_y/(p_y+λ): the label's weight p_y beside a residual of constant weight λ."""

    lam: float

    def __post_init__(self) -> None:
        check_range("lam", self.lam, 0.0, open_low=True)

    def __call__(self, view: TokenView) -> PerToken:
        p = view.label_logp.exp()
        return p / (p + self.lam)

    def rest(self, view: TokenView) -> PerToken:
        return self.lam / (view.label_logp.exp() + self.lam)

    @property
    def formula(self) -> str:
        return f"p_y/(p_y+{self.lam:g})"


@dataclass(frozen=True)
class Opposed:
    """γ = 1 and a residual of mass 1 that sums to 0 (p − q): GEM's signed mixture Q = δ + p − q, which sums to 1."""

    formula: ClassVar[str] = "1 (signed)"

    def __call__(self, view: TokenView) -> PerToken:
        return torch.ones_like(view.lse)

    def rest(self, view: TokenView) -> PerToken:
        """1, not 0: the residual's own masses cancel."""
        return torch.ones_like(view.lse)


# ---- scales: the factor in front of CE(Q, p); it is per token and it belongs to the method -------------------------


@dataclass(frozen=True)
class Shifted:
    """scale = p_y + λ: dropping it would be a different method (up to 1/λ stronger on unlikely tokens)."""

    lam: float

    def __call__(self, view: TokenView) -> PerToken:
        return view.label_logp.exp() + self.lam

    @property
    def formula(self) -> str:
        return f"p_y+{self.lam:g}"


@dataclass(frozen=True)
class DocumentRatio:
    """scale = min(π_θ/π_ref, clip) of the document's label tokens: one weight per document."""

    clip: float = 16.0
    ratio: str = "mean"  # geometric, over the tokens (length-normalised); "raw": of the whole sequence
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
        remedy = "Pass `side=SideInputs(old_logp=…)`; TargetSFTTrainer scores it at the start of every block of steps."
        old = view.need("old_logp", "the target 'psft'", remedy)
        ratio = (view.label_logp - old.to(view.lse.dtype)).exp()
        return torch.where(ratio <= 1.0 + self.eps, ratio, 0.0)  # a product would make NaN of an infinite ratio

    @property
    def formula(self) -> str:
        return f"r·1[r ≤ {1 + self.eps:g}], r = p_y/π_old"


def _ranks(values: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """The values renumbered 0, 1, 2, … in their order; unlike `torch.unique` it does not wait for the device."""
    order = values.argsort(stable=True)
    ordered = values[order]
    new = torch.cat([torch.zeros_like(ordered[:1]), (ordered[1:] != ordered[:-1]).to(ordered.dtype)])
    return torch.empty_like(order).scatter_(0, order, new.cumsum(0).to(order.dtype))
