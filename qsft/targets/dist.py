"""The distributions that a target is made of.

A target is a short sum Q = Σ mass·dist, so the gradient p − Q never needs Q as a V-sized tensor:

    grad = Σ mass·(1 − student_share)·p, then every dist does grad −= mass·(the rest of it)

`student_share` is the factor c of a part c·p of the distribution, which may differ on the distribution's support.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.view import TokenView, row_dots


class Dist(ABC):
    """A distribution over the vocabulary at N positions, fixed: no gradient flows into it.

    A distribution with a `support` (and `at`) runs on the Triton kernels too; one without is written out over the
    vocabulary by `subtract_`.
    """

    is_label: ClassVar[bool] = False  # whether its part of the loss is logged as label_loss
    share_differs_on_support: ClassVar[bool] = False  # whether `student_share` depends on `on_support`

    @abstractmethod
    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """−Σ dist·log p, differentiable in the view's logits; 0 for the student itself, which has no gradient."""

    @abstractmethod
    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """grad −= mass·dist in place, without the part that `student_share` accounts for."""

    def student_share(self, on_support: bool = False) -> Tensor | float:
        """The factor c with dist = c·p + (what `subtract_` subtracts), off or on the support."""
        return 0.0

    def support(self) -> tuple[Int[Tensor, "N C"], ...] | None:
        """The tokens at which it is not student_share·p, as tensors of ids; None where that is the whole vocabulary."""
        return None

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        """The probabilities of the tokens `ids`, to which the student gives `p`; needed only with a `support`."""
        raise TypeError(f"{type(self).__name__} has no support, so it is written out over the vocabulary")

    def entropy(self) -> Float[Tensor, " N"] | float:
        """−Σ dist·log dist, for values reported as KL; 0 for a distribution that counts as one outcome."""
        return 0.0


@dataclass(frozen=True)
class OneHot(Dist):
    """δ_y: the observed token."""

    labels: Int[Tensor, " N"]
    is_label: ClassVar[bool] = True

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        return -view.label_logp

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        grad.scatter_add_(-1, self.labels[:, None], -mass[:, None])

    def support(self) -> tuple[Int[Tensor, "N 1"], ...]:
        return (self.labels[:, None],)

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        return (ids == self.labels[:, None]).to(p.dtype)


@dataclass(frozen=True)
class Student(Dist):
    """sg[p]: the model itself. It adds neither value nor gradient and only takes mass away from the label."""

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """0, so that `dft` reports the number that TRL's own DFT loss reports."""
        return torch.zeros_like(view.lse)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """Nothing: all of it is proportional to p."""

    def student_share(self, on_support: bool = False) -> float:
        return 1.0

    def support(self) -> tuple[Int[Tensor, "N C"], ...]:
        return ()

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        return p


@dataclass(frozen=True)
class Uniform(Dist):
    """1/V over the first `size` entries of the head: the real tokens, not the padding."""

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
        """−Σ_S R·log p; slots without mass are masked before multiplying, because 0·−inf is NaN."""
        logp = view.logp_at(self.ids).masked_fill(self.probs == 0, 0.0)
        return -(self.probs * logp).sum(dim=-1)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """K columns per token; adding, not writing, keeps repeated ids right."""
        grad.scatter_add_(-1, self.ids, -mass[:, None] * self.probs)

    def support(self) -> tuple[Int[Tensor, "N K"], ...]:
        return (self.ids,)

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        same = ids[:, :, None] == self.ids[:, None, :]
        return torch.where(same, self.probs[:, None, :], 0.0).sum(dim=-1)

    def entropy(self) -> Float[Tensor, " N"]:
        total: Tensor = torch.special.entr(self.probs).sum(dim=-1)
        return total


@dataclass(frozen=True)
class Dense(Dist):
    """A distribution written out over the vocabulary. It may be signed (an induced target); it sums to 1."""

    probs: Float[Tensor, "N V"]

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        """lse·Σq − Σ q·z, without a second V-sized temporary."""
        return view.lse * self.probs.sum(dim=-1) - row_dots(self.probs, view.logits)

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        grad.addcmul_(self.probs, mass[:, None], value=-1.0)

    def entropy(self) -> Float[Tensor, " N"]:
        total: Tensor = torch.special.entr(self.probs.clamp(min=0.0)).sum(dim=-1)
        return total


@dataclass(frozen=True)
class Ghost(Dist):
    """p restricted to the tokens *outside* `slots` and renormalized: p_v/P_tail.

    Its loss term is −log P_tail, whose gradient p − ghost is exact without a V-sized target. As a teacher's mass
    outside its slots is known only in total, it counts as one outcome in `entropy`.

    Args:
        slots: the tokens that are left out, by default the teacher's slots.
        log_tail: log P_tail, at least residual.NO_TAIL.
        of_teacher: whether `slots` are those of the view's teacher, whose log-sum-exp the view has.
    """

    slots: Int[Tensor, "N K"]
    log_tail: Float[Tensor, " N"]
    of_teacher: bool = True
    share_differs_on_support: ClassVar[bool] = True

    def cross_entropy(self, view: TokenView) -> Float[Tensor, " N"]:
        lse_outside = view.lse_outside if self.of_teacher else view.lse_without(self.slots)
        return view.lse - lse_outside

    def student_share(self, on_support: bool = False) -> Tensor | float:
        return 0.0 if on_support else (-self.log_tail).exp()

    def subtract_(self, grad: Float[Tensor, "N V"], mass: Float[Tensor, " N"]) -> None:
        """Nothing: it is proportional to p outside the slots and zero on them."""

    def support(self) -> tuple[Int[Tensor, "N K"], ...]:
        return (self.slots,)

    def at(self, ids: Int[Tensor, "N C"], p: Float[Tensor, "N C"]) -> Float[Tensor, "N C"]:
        inside = (ids[:, :, None] == self.slots[:, None, :]).any(dim=-1)
        return (p * (-self.log_tail).exp()[:, None]).masked_fill(inside, 0.0)
