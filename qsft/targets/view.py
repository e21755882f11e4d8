"""TokenView: all that a target may look at, for N label tokens at once.

Sizes: N label tokens, V vocabulary, K teacher slots. `logp` is normalised, `logits` never is.
Everything here is read without gradient; a target decides where to go, not how to get there.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

R = TypeVar("R", bound="LabelRows")
ROLES = ("teacher", "reference")  # of a distribution from outside: to learn from, or to stay close to
IGNORED = -100  # the label of a token that nothing is learnt from
HOLE = -1e18  # a logit that stands for no token: beyond all real ones, and nothing made of it overflows
EMPTY = float("-inf")  # the log-prob of a teacher slot that holds nothing


@dataclass(frozen=True)
class LabelRows:
    """Tensors with one row per label token, each optional."""

    def map(self: R, change: Callable[[Tensor], Tensor]) -> R:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(value) for name, value in values.items() if isinstance(value, Tensor)})

    def __getitem__(self: R, rows: slice | Tensor) -> R:
        return self.map(lambda value: value[rows])

    def to(self: R, device: torch.device, dtype: torch.dtype) -> R:
        """The same on `device`, floats as `dtype` and the rest as int64."""
        return self.map(lambda value: value.to(device, dtype if value.is_floating_point() else torch.int64))


@dataclass(frozen=True)
class TopK(LabelRows):
    """The teacher's K most likely tokens at N positions, with log-probs normalised over its *full* vocabulary.

    `label_logp` is the teacher's log-prob of the observed token (also when it is outside the top-k), `log_tail` the log
    of its mass outside the slots, which rounded log-probs do not give back.
    Empty slots have logp = −inf; their id may be anything.
    """

    ids: Int[Tensor, "N K"]
    logps: Float[Tensor, "N K"]
    label_logp: Float[Tensor, " N"] | None = None
    log_tail: Float[Tensor, " N"] | None = None

    @cached_property
    def live(self) -> Bool[Tensor, "N K"]:
        return self.logps > EMPTY

    @cached_property
    def empty(self) -> Bool[Tensor, " N"]:
        """Positions at which the teacher says nothing: the residual falls back to the student itself."""
        return ~self.live.any(dim=-1)

    @cached_property
    def slots(self) -> Int[Tensor, "N K"]:
        """`ids` with the likeliest token in place of what empty slots hold: all of them may be read and written."""
        return torch.where(self.live, self.ids, self.ids.gather(-1, self.logps.argmax(dim=-1, keepdim=True)))

    @cached_property
    def log_outside(self) -> Float[Tensor, " N"]:
        """log of the teacher's mass outside its slots: `log_tail`, or what the slots leave of 1."""
        return log_complement(self.logps.logsumexp(dim=-1)) if self.log_tail is None else self.log_tail

    def within(self, vocab_size: int) -> "TopK":
        """The slots a head with `vocab_size` rows can express; the others are emptied and the rest renormalised.

        Qwen heads of 151,936 and 152,064 rows share one tokenizer: only padding rows differ.
        """
        # No early exit when nothing is outside: the test would cost a device synchronisation, the sums cost nothing.
        outside = (self.ids < 0) | (self.ids >= vocab_size)
        lost = self.logps.masked_fill(~outside, EMPTY).logsumexp(dim=-1, keepdim=True)
        kept = log_complement(lost)
        logps = self.logps.masked_fill(outside, EMPTY) - kept
        log_tail = None if self.log_tail is None else self.log_tail - kept[:, 0]
        return replace(self, ids=self.ids.masked_fill(outside, 0), logps=logps, log_tail=log_tail)


@dataclass(frozen=True)
class Full(LabelRows):
    """The teacher's whole distribution at N positions (a live teacher): nothing is truncated, the tail is empty."""

    logps: Float[Tensor, "N V"]
    label_logp: Float[Tensor, " N"] | None = None

    def within(self, vocab_size: int) -> "Full":
        """The distribution over a head of `vocab_size` rows: cut and renormalised, or padded with empty slots."""
        size = self.logps.shape[-1]
        if size > vocab_size:
            return replace(self, logps=self.logps[:, :vocab_size].log_softmax(dim=-1))
        if size < vocab_size:
            return replace(self, logps=torch.nn.functional.pad(self.logps, (0, vocab_size - size), value=EMPTY))
        return self


@dataclass(frozen=True)
class SideInputs(LabelRows):
    """What some rows need beyond logits and teacher, one value per label token (each optional).

    ref_logp    log-prob of the label under the reference model (iw_sft)
    old_logp    log-prob of the label under the old policy (psft)
    weight      a fixed weight per token, equal within a document (iw_sft)
    critical    1 where the token is critical (cft)
    document    index of the document the token belongs to (iw_sft)
    vocab_size  rows of the head that are real tokens (label_smoothing)
    """

    ref_logp: Float[Tensor, " N"] | None = None
    old_logp: Float[Tensor, " N"] | None = None
    weight: Float[Tensor, " N"] | None = None
    critical: Bool[Tensor, " N"] | Int[Tensor, " N"] | Float[Tensor, " N"] | None = None
    document: Int[Tensor, " N"] | None = None
    vocab_size: int | None = None


@dataclass(frozen=True)
class TokenView:
    """N label tokens as a target sees them: the student's logits, the label, the teacher, the side inputs."""

    logits: Float[Tensor, "N V"]
    labels: Int[Tensor, " N"]
    lse: Float[Tensor, " N"]
    teacher: TopK | Full | None = None
    side: SideInputs = SideInputs()
    outside: Float[Tensor, " N"] | None = None  # `lse_outside`, where it is known already

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "N V"],
        labels: Int[Tensor, " N"],
        teacher: TopK | Full | None = None,
        side: SideInputs | None = None,
    ) -> "TokenView":
        """The view of full logits; the fused head, which has the log-sum-exp already, builds it directly."""
        return cls(logits, labels, logits.logsumexp(dim=-1), teacher, side or SideInputs())

    @cached_property
    def label_logp(self) -> Float[Tensor, " N"]:
        """log p_y: the student's log-prob of the observed token."""
        return self.logp_at(self.labels[:, None])[:, 0]

    def logp_at(self, ids: Int[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """log p of the tokens `ids`; z − lse never underflows."""
        return self.logits.gather(-1, ids) - self.lse[:, None]

    @cached_property
    def lse_outside(self) -> Float[Tensor, " N"]:
        """log-sum-exp of the logits outside the teacher's slots; 1 − Σp over them would lose a small tail in rounding.

        Where the slots hold the whole vocabulary it is very negative, but finite.
        """
        if self.outside is not None:
            return self.outside
        assert isinstance(self.teacher, TopK)
        return self.logits.scatter(-1, self.teacher.slots, HOLE).logsumexp(dim=-1)

    @property
    def vocab_size(self) -> int:
        """Rows of the head that are real tokens: heads are often padded beyond the tokenizer."""
        rows = self.logits.shape[-1]
        return min(self.side.vocab_size or rows, rows)  # a tokenizer may also have more tokens than the head has rows

    def need(self, name: str, reader: str, remedy: str) -> Tensor:
        """The side input `name`, or an error that says who reads it and how to provide it."""
        value: Tensor | None = getattr(self.side, name)
        if value is None:
            raise ValueError(f"{reader} reads the side input {name!r}, which was not given. {remedy}")
        return value

    def need_teacher(self, role: str) -> TopK | Full:
        """The distribution from outside, or an error that says how to provide one in this `role`."""
        if self.teacher is None:
            raise ValueError(
                f"this target reads a {role}, but none was given. Pass `teacher=TopK(ids, logps)` to the loss, or to "
                "the trainer `teacher=` a cache directory, a model id or a model; `qsft cache build` makes a cache."
            )
        return self.teacher


def log_complement(log_mass: Tensor) -> Tensor:
    """log(1 − exp(log_mass)); the input is clamped below 0 because sums of rounded log-probs may reach it."""
    return torch.log(-torch.expm1(log_mass.clamp(max=-1e-7)))


def row_dots(a: Float[Tensor, "N V"], b: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Σ_v a·b of every row, without the product as a tensor; on CPU row by row, 4 × faster than einsum's bmm."""
    if a.device.type == "cpu" and len(a):
        return torch.stack([torch.dot(x, y) for x, y in zip(a, b)])
    return torch.einsum("nv,nv->n", a, b)
