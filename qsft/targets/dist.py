"""The distributions a target is made of. Each knows its cross-entropy and how to subtract itself from p.

A target is a short sum Q = Σ mass·dist, so the gradient p − Q never needs Q as a V-sized tensor:

    grad = (Σ mass − Σ mass·student_share)·p, then every dist does grad −= mass·(what is left of it)

`student_share` is the part of a distribution that is proportional to p on the whole vocabulary.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from qsft.targets.view import EMPTY, TokenView, log_complement, row_dots


class Dist(ABC):
    """A distribution over the vocabulary at N positions, fixed (no gradient flows into it)."""

    @abstractmethod
    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """−Σ dist·log p, differentiable in the view's logits; the student itself counts 0 (it has no gradient)."""

    @abstractmethod
    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """grad −= mass·dist in place, without the part that `student_share` accounts for."""

    def student_share(self) -> Tensor | float:
        """The factor c for which dist = c·p + (what `subtract_` subtracts)."""
        return 0.0

    def dense(self, p: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """The distribution written out over the vocabulary, for pictures and tests."""
        ones = p.new_ones(p.shape[0])
        minus = torch.zeros_like(p)
        self.subtract_(minus, ones)
        share = torch.as_tensor(self.student_share(), dtype=p.dtype, device=p.device).expand(p.shape[0])
        return share[:, None] * p - minus


@dataclass(frozen=True)
class OneHot(Dist):
    """δ_y: the observed token."""

    labels: Int[Tensor, " N"]

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        return -view.label_logp

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        grad.scatter_add_(-1, self.labels[:, None], -mass[:, None])


@dataclass(frozen=True)
class Student(Dist):
    """sg[p]: the model itself. It adds neither value nor gradient, it only takes mass away from the label."""

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """0: so that `dft` prints the number TRL's own DFT loss prints."""
        return torch.zeros_like(view.lse)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """Nothing is left: all of it is proportional to p."""

    def student_share(self) -> float:
        return 1.0


@dataclass(frozen=True)
class Uniform(Dist):
    """1/V over the first `size` rows of the head: the real tokens, not the padding."""

    size: int

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        return view.lse - view.logits[:, : self.size].mean(dim=-1)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        grad[:, : self.size] -= (mass / self.size)[:, None]


@dataclass(frozen=True)
class Sparse(Dist):
    """Probabilities on K tokens per position. An id may repeat: its slots add up. Empty slots have probability 0."""

    ids: Int[Tensor, "N K"]
    probs: Float[Tensor, "N K"]

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """−Σ_S R·log p; slots without mass are masked before multiplying (0·−inf is NaN)."""
        logp = view.logp_at(self.ids).masked_fill(self.probs == 0, 0.0)
        return -(self.probs * logp).sum(dim=-1)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """K columns per row; adding, not writing, keeps repeated ids right."""
        grad.scatter_add_(-1, self.ids, -mass[:, None] * self.probs)


@dataclass(frozen=True)
class Dense(Dist):
    """A distribution written out over the vocabulary. It may be signed (an induced target); it sums to 1."""

    probs: Float[Tensor, "N V"]

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """lse·Σq − Σ q·z, without a second V-sized temporary."""
        return view.lse * self.probs.sum(dim=-1) - row_dots(self.probs, view.logits)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        grad.addcmul_(self.probs, mass[:, None], value=-1.0)


@dataclass(frozen=True)
class Ghost(Dist):
    """p restricted to the tokens *outside* the teacher's support S and renormalised: p_v/P_tail.

    Its loss term is −log P_tail, whose gradient p − ghost is exact without any V-sized target.
    """

    ids: Int[Tensor, "N K"]
    live: Bool[Tensor, "N K"]
    p_support: Float[Tensor, "N K"]
    p_tail: Float[Tensor, " N"]

    @classmethod
    def outside(cls, view: TokenView, ids: Int[Tensor, "N K"], live: Bool[Tensor, "N K"]) -> "Ghost":
        """The ghost of the tokens outside the live slots `ids`."""
        logp = view.logp_at(ids).masked_fill(~live, EMPTY)
        return cls(ids, live, logp.exp(), log_complement(logp.logsumexp(dim=-1)).exp())

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        logp = view.logp_at(self.ids).masked_fill(~self.live, EMPTY)
        nothing_live = ~self.live.any(dim=-1)
        # logsumexp over empty slots has no gradient (0/0): those rows carry no ghost mass, any finite value serves.
        logp = logp.masked_fill(nothing_live[:, None], -1e4)
        return -log_complement(logp.logsumexp(dim=-1))

    def student_share(self) -> Tensor:
        """1/P_tail everywhere; `subtract_` puts back what that takes from S."""
        return 1.0 / self.p_tail

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """Undo p/P_tail on the support."""
        grad.scatter_add_(-1, self.ids, (mass / self.p_tail)[:, None] * self.p_support)
