"""The distributions a target is made of. Each knows its cross-entropy and how to subtract itself from p.

A target is a short sum Q = Σ mass·dist, so the gradient p − Q never needs Q as a V-sized tensor:

    grad = Σ mass·(1 − student_share)·p, then every dist does grad −= mass·(what is left of it)

`student_share` is the factor c of the part c·p of a distribution. On the teacher's slots it may be another one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.view import TokenView, row_dots


class Dist(ABC):
    """A distribution over the vocabulary at N positions, fixed (no gradient flows into it)."""

    @abstractmethod
    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """−Σ dist·log p, differentiable in the view's logits; the student itself counts 0 (it has no gradient)."""

    @abstractmethod
    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """grad −= mass·dist in place, without the part that `student_share` accounts for."""

    def student_share(self, on_slots: bool = False) -> Tensor | float:
        """The factor c for which dist = c·p + (what `subtract_` subtracts), off or on the teacher's slots."""
        return 0.0

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """The probabilities of the tokens `ids`, to which the student gives `p`."""
        raise NotImplementedError(f"{type(self).__name__} is written out over the vocabulary")


@dataclass(frozen=True)
class OneHot(Dist):
    """δ_y: the observed token."""

    labels: Int[Tensor, " N"]

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        return -view.label_logp

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        grad.scatter_add_(-1, self.labels[:, None], -mass[:, None])

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        return (ids == self.labels[:, None]).to(p.dtype)


@dataclass(frozen=True)
class Student(Dist):
    """sg[p]: the model itself. It adds neither value nor gradient, it only takes mass away from the label."""

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """0: so that `dft` prints the number TRL's own DFT loss prints."""
        return torch.zeros_like(view.lse)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """Nothing is left: all of it is proportional to p."""

    def student_share(self, on_slots: bool = False) -> float:
        return 1.0

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        return p


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

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        same = ids[:, :, None] == self.ids[:, None, :]
        return torch.where(same, self.probs[:, None, :], 0.0).sum(dim=-1)


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
    """p restricted to the tokens *outside* the teacher's slots and renormalised: p_v/P_tail.

    Its loss term is −log P_tail, whose gradient p − ghost is exact without any V-sized target.
    """

    slots: Int[Tensor, "N K"]
    log_tail: Float[Tensor, " N"]  # log P_tail, from residual.NO_TAIL upwards

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        return view.lse - view.lse_outside

    def student_share(self, on_slots: bool = False) -> Tensor | float:
        return 0.0 if on_slots else (-self.log_tail).exp()

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """Nothing is left: it is proportional to p outside the slots and zero on them."""

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        inside = (ids[:, :, None] == self.slots[:, None, :]).any(dim=-1)
        return (p * (-self.log_tail).exp()[:, None]).masked_fill(inside, 0.0)
