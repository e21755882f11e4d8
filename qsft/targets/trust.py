"""Trusts γ: how much of the mass the observed token gets.

A trust is any callable `view -> γ[N]`. It may have a method `rest(view)` that returns 1 − γ where 1.0 − γ would lose
precision, a `formula` for the table, and `needs`, the names of the inputs it reads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.targets.view import TokenView
from qsft.validation import check_choice, check_range

PerToken = Float[Tensor, " N"]
COLUMN_NEED = "column:"  # prefix of a need that is a column of the data set


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
    """γ = p_y^α: the model's own probability of the token."""

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
    """γ = 1[p_y ≥ τ] (> when strict), or 1[p_y ≤ τ] with keep="below": train on some of the tokens."""

    tau: float
    keep: str = "above"
    strict: bool = False

    def __post_init__(self) -> None:
        check_range("tau", self.tau, 0.0, 1.0)
        check_choice("keep", self.keep, ("above", "below"))

    def __call__(self, view: TokenView) -> PerToken:
        p = view.label_logp.exp()
        kept = p >= self.tau if self.keep == "above" else p <= self.tau
        if self.strict:
            kept &= p != self.tau
        return kept.to(p.dtype)

    @property
    def formula(self) -> str:
        signs = {("above", True): ">", ("above", False): "≥", ("below", True): "<", ("below", False): "≤"}
        return f"1[p_y {signs[self.keep, self.strict]} {self.tau:g}]"


@dataclass(frozen=True)
class Gated:
    """γ = gate·γ': a trust on the tokens that a gate keeps. Beyond-log's code averages over the kept tokens."""

    gate: Threshold
    trust: Prob
    averages_kept: ClassVar[bool] = True

    def __call__(self, view: TokenView) -> PerToken:
        return self.gate(view) * self.trust(view)

    @property
    def formula(self) -> str:
        return f"{self.trust.formula}·{self.gate.formula}"


@dataclass(frozen=True)
class Entropy:
    """γ = (H/ln k)^α, H the entropy of the student's top k renormalized: trust labels where it is uncertain."""

    k: int = 20
    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_range("k", self.k, 2)
        if not isinstance(self.k, Integral):
            raise ValueError(f"k = {self.k!r} is not an integer: it counts tokens.")
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
class SignedTrust:
    """γ = 1 beside a signed residual whose shares sum to 0: Q = δ + λ·(p − q) (GEM), which sums to 1."""

    formula: ClassVar[str] = "1 (signed)"

    def __call__(self, view: TokenView) -> PerToken:
        return torch.ones_like(view.lse)

    def rest(self, view: TokenView) -> PerToken:
        """1, not 0: the residual's own shares cancel."""
        return torch.ones_like(view.lse)


@dataclass(frozen=True)
class Column:
    """γ, or a part of one, from a column of the data set with one value per token (or per example).

    >>> Column("quality").needs
    frozenset({'column:quality'})
    """

    name: str

    def __call__(self, view: TokenView) -> PerToken:
        if self.name not in view.side.columns:
            raise ValueError(
                f"the target reads the column {self.name!r}, which was not given. Pass "
                f"`side=SideInputs(columns={{{self.name!r}: …}})`, or to the trainer a data set with that column."
            )
        return view.side.columns[self.name].to(view.lse.dtype)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({f"{COLUMN_NEED}{self.name}"})

    @property
    def formula(self) -> str:
        return self.name


Evidence = Callable[[TokenView], PerToken]


@dataclass(frozen=True)
class BetaTrust:
    """γ = α/(α+β), the mean of a Beta(α, β) belief that the label is right: a trust from evidence.

    α = p_y and β = 1 − p_y give `dft`'s γ. Pseudo-counts and annotations give others, for example
    BetaTrust(alpha=Column("votes_for"), beta=Column("votes_against")).

    Args:
        alpha: evidence for the label: a callable on the view (a trust, a `Column`), or a constant.
        beta: evidence against it, likewise.
    """

    alpha: Evidence | float
    beta: Evidence | float

    def _evidence(self, view: TokenView) -> tuple[PerToken, PerToken]:
        alpha = self.alpha(view) if callable(self.alpha) else torch.full_like(view.lse, self.alpha)
        beta = self.beta(view) if callable(self.beta) else torch.full_like(view.lse, self.beta)
        return alpha, beta

    def __call__(self, view: TokenView) -> PerToken:
        alpha, beta = self._evidence(view)
        return alpha / (alpha + beta)

    def rest(self, view: TokenView) -> PerToken:
        alpha, beta = self._evidence(view)
        return beta / (alpha + beta)

    @property
    def needs(self) -> frozenset[str]:
        empty: frozenset[str] = frozenset()
        return empty.union(*(getattr(part, "needs", empty) for part in (self.alpha, self.beta)))

    @property
    def formula(self) -> str:
        alpha, beta = (getattr(part, "formula", None) or f"{part}" for part in (self.alpha, self.beta))
        return f"{alpha}/({alpha}+{beta})"
