"""Residuals π̃: where the mass goes that the label does not get.

A residual is any callable `view -> [(share[N], Dist), …]`; a single Dist or a dense tensor [N, V] is accepted too. The
shares sum to 1, or to 0 for a signed residual (see `Tempered`).

A teacher truncated to its top-k does not say what happens outside its support S. Two rules:

    drop    R has mass on S only and is renormalized there
    ghost   one more bucket for everything outside S, distributed there as the student distributes it
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.targets.dist import Dense, Dist, Ghost, Sparse, Student, Uniform
from qsft.targets.view import EMPTY, Full, TokenView, TopK
from qsft.validation import check_choice, check_range

Terms = list[tuple[Tensor, Dist]]
TAILS = ("drop", "ghost")
FORMS = ("geometric", "reward")
NO_TAIL = -80.0  # log P_tail below which the student has no mass outside the slots: e^80 does not overflow


@dataclass(frozen=True)
class SelfPrior:
    """π̃ = π_θ: the model itself, with zero gradient."""

    formula: ClassVar[str] = "π_θ"

    def __call__(self, view: TokenView) -> Dist:
        return Student()


@dataclass(frozen=True)
class UniformPrior:
    """π̃ = 1/V over the real vocabulary, not over the padding of the head."""

    formula: ClassVar[str] = "1/V"

    def __call__(self, view: TokenView) -> Dist:
        return Uniform(view.vocab_size)


@dataclass(frozen=True)
class Teacher:
    """π̃ = π_T, at a temperature (log-probs/T renormalized on the support; T ≠ 1 only with drop)."""

    tail: str = "drop"
    temperature: float = 1.0
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})
    symbol: ClassVar[str] = "π_T"

    def __post_init__(self) -> None:
        check_choice("tail", self.tail, TAILS)
        check_range("temperature", self.temperature, 0.0, open_low=True)
        if self.temperature != 1.0 and self.tail == "ghost":
            raise ValueError('temperature ≠ 1 needs tail="drop": the tail of a tempered teacher is not known.')

    def __call__(self, view: TokenView) -> Terms | Dist:
        teacher = view.need_teacher(*self.needs)
        if isinstance(teacher, Full):
            return Dense((teacher.logps / self.temperature).softmax(dim=-1))
        if self.tail == "ghost":
            return with_ghost(view, teacher, teacher.logps, teacher.log_outside)
        return on_support(teacher, teacher.logps / self.temperature)

    @property
    def formula(self) -> str:
        return self.symbol if self.temperature == 1.0 else f"{self.symbol}^(1/{self.temperature:g})"


@dataclass(frozen=True)
class Reference(Teacher):
    """π̃ = π_ref: the model to stay close to, by default the student as it was before training."""

    tail: str = "ghost"  # so that the gradient vanishes at π_θ = π_ref
    needs: ClassVar[frozenset[str]] = frozenset({"reference"})
    symbol: ClassVar[str] = "π_ref"


@dataclass(frozen=True)
class Guided:
    """π̃ ∝ π_θ^(1−η)·π_T^η (geometric) or π_θ·π_T^η (reward): the student, guided by the teacher.

    η = 0 is the student itself (the p-loss), not the student cut down to the teacher's support.
    """

    eta: float = 0.5
    tail: str = "drop"
    form: str = "geometric"
    needs: ClassVar[frozenset[str]] = frozenset({"teacher"})

    def __post_init__(self) -> None:
        check_choice("tail", self.tail, TAILS)
        check_choice("form", self.form, FORMS)
        check_range("eta", self.eta, 0.0, 1.0 if self.form == "geometric" else float("inf"))
        if self.tail == "ghost" and self.form == "reward":
            raise ValueError(
                'tail="ghost" is exact for form="geometric" only (the reward form\'s tail is ∝ p^(1+η), which no '
                'single bucket describes). Use tail="drop" or form="geometric".'
            )

    @property
    def powers(self) -> tuple[float, float]:
        """The powers of π_θ and of π_T."""
        student = 1.0 - self.eta if self.form == "geometric" else 1.0
        return student, self.eta

    def __call__(self, view: TokenView) -> Terms | Dist:
        if self.eta == 0.0:
            return Student()
        teacher = view.need_teacher("teacher")
        if isinstance(teacher, Full):
            return Dense(self._blend(view.logits, teacher.logps).softmax(dim=-1))
        log_weights = self._blend(view.logp_at(teacher.ids), teacher.logps)
        if self.tail == "drop":
            return on_support(teacher, log_weights)
        log_tail = self._blend(view.lse_outside - view.lse, teacher.log_outside)
        return with_ghost(view, teacher, log_weights, log_tail)

    def _blend(self, student: Tensor, teacher: Tensor) -> Tensor:
        """a·log p + b·log t; a student power of 0 leaves log p out, since 0·−inf is NaN."""
        a, b = self.powers
        return b * teacher if a == 0.0 else torch.add(b * teacher, student, alpha=a)

    @property
    def formula(self) -> str:
        a, b = self.powers
        if b == 0.0:
            return "π_θ"
        factors = [_power("π_θ", a), _power("π_T", b)]
        return "∝ " + "·".join(filter(None, factors))


@dataclass(frozen=True)
class Tempered:
    """λ·(p − q) with q = softmax(z/β): GEM's signed residual, whose shares sum to 0.

    Args:
        link: "linear", or "logsigmoid", which weighs q by σ(0.01·(z − z_y)).
        lam: the weight λ of the entropy regularizer: ℓ = CE(δ, p) − λ·CE(q, p).
    """

    beta: float = 0.7
    link: str = "linear"
    lam: float = 1.0

    def __post_init__(self) -> None:
        check_range("beta", self.beta, 0.0, open_low=True)
        check_range("lam", self.lam, 0.0)
        check_choice("link", self.link, ("linear", "logsigmoid"))

    def weights(self, view: TokenView) -> Float[Tensor, "N V"]:
        """q, or u = q·σ(0.01·(z − z_y))."""
        q = (view.logits / self.beta).softmax(dim=-1)
        if self.link == "linear":
            return q
        margin = view.logits - view.logits.gather(-1, view.labels[:, None])
        return q.mul_(margin.mul_(0.01).sigmoid_())

    def __call__(self, view: TokenView) -> Terms:
        """p with share λ, q (or u/Σu) with share −λ."""
        weights = self.weights(view)
        if self.link == "logsigmoid":
            weights = weights.div_(weights.sum(dim=-1, keepdim=True))
        share = torch.full_like(view.lse, self.lam)
        return [(share, Student()), (-share, Dense(weights))]

    @property
    def formula(self) -> str:
        link = "" if self.link == "linear" else "·σ"
        difference = f"π_θ − softmax(z/{self.beta:g}){link}"
        return difference if self.lam == 1.0 else f"{self.lam:g}·({difference})"


def _power(symbol: str, exponent: float) -> str:
    """symbol^exponent as a factor of a formula; empty for the exponent 0."""
    if exponent == 0.0:
        return ""
    return symbol if exponent == 1.0 else f"{symbol}^{exponent:g}"


Reward = Callable[[TokenView], tuple[Int[Tensor, "N K"], Float[Tensor, "N K"]]]


@dataclass(frozen=True)
class RewardShaped:
    """π̃ ∝ π_θ·exp(r/τ): the student, reweighted by a reward on a set of tokens.

    `Guided(eta, form="reward")` is the case r = λ·log π_T with η = λ/τ on the teacher's slots.

    Args:
        reward: maps a view to (ids [N, K], rewards [N, K]); ids must not repeat within a position. What it reads
            beside the student it declares in an attribute `needs`, such as {"teacher"}.
        tau: the temperature τ: a smaller one follows the reward more closely.
        outside: "keep" gives tokens outside the set the reward 0; "drop" gives them no mass.
    """

    reward: Reward
    tau: float = 1.0
    outside: str = "keep"

    def __post_init__(self) -> None:
        check_range("tau", self.tau, 0.0, open_low=True)
        check_choice("outside", self.outside, ("keep", "drop"))

    def __call__(self, view: TokenView) -> Terms:
        ids, rewards = self.reward(view)
        log_weights = view.logp_at(ids) + rewards / self.tau
        sparse = Sparse(ids, log_weights.softmax(dim=-1))
        one = torch.ones_like(view.lse)
        if self.outside == "drop":
            return [(one, sparse)]
        log_tail = (view.lse_without(ids) - view.lse).clamp(min=NO_TAIL)
        tail_share = torch.sigmoid(log_tail - log_weights.logsumexp(dim=-1))
        tail_share = torch.where(log_tail > NO_TAIL, tail_share, 0.0)
        return [(one - tail_share, sparse), (tail_share, Ghost(ids, log_tail, of_teacher=False))]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(getattr(self.reward, "needs", ()))

    @property
    def formula(self) -> str:
        return "∝ π_θ·exp(r)" if self.tau == 1.0 else f"∝ π_θ·exp(r/{self.tau:g})"


def on_support(teacher: TopK, log_weights: Float[Tensor, "N K"]) -> Terms:
    """`drop`: softmax of `log_weights` over the slots; a position without any falls back to the student."""
    empty = teacher.empty.to(log_weights.dtype)
    probs = log_weights.masked_fill(~teacher.live, EMPTY).masked_fill(teacher.empty[:, None], 0.0).softmax(dim=-1)
    return [(1.0 - empty, Sparse(teacher.slots, probs)), (empty, Student())]


def with_ghost(
    view: TokenView, teacher: TopK, log_weights: Float[Tensor, "N K"], log_tail: Float[Tensor, " N"]
) -> Terms:
    """`ghost`: the support as in `drop`, beside one bucket of log-weight `log_tail` for the tokens outside it."""
    ghost = Ghost(teacher.slots, (view.lse_outside - view.lse).clamp(min=NO_TAIL))
    (inside, sparse), (empty, student) = on_support(teacher, log_weights)
    log_inside = log_weights.masked_fill(~teacher.live, EMPTY).logsumexp(dim=-1)
    has_tail = (ghost.log_tail > NO_TAIL) & ~teacher.empty
    share = torch.where(has_tail, torch.sigmoid(log_tail - log_inside), 0.0)
    return [(inside - share, sparse), (share, ghost), (empty, student)]
