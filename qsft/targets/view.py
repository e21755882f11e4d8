"""TokenView: everything a target may read, for N label tokens at once.

Sizes: N label tokens, V vocabulary, K teacher slots. Names with `logp` are normalized log-probs; `logits` are not.
Targets read it without gradient: γ, π̃ and scale are constants of the loss.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Same = TypeVar("Same", bound="LabelTensors")
ROLES = ("teacher", "reference")  # what a second model is to a target: to learn from, or to stay close to
IGNORED = -100  # the label of a token that is not trained on
MASKED_LOGIT = -1e18  # the logit of a masked token: below all real ones, and finite so that nothing overflows
EMPTY = float("-inf")  # the log-prob of an empty teacher slot


@dataclass(frozen=True)
class LabelTensors:
    """Tensors whose first dimension is the label tokens, each optional; a field may also be a dict of them."""

    def map(self: Same, change: Callable[[Tensor], Tensor]) -> Same:
        """Apply `change` to every tensor."""
        changed: dict[str, Any] = {}
        for own in fields(self):
            value = getattr(self, own.name)
            if isinstance(value, Tensor):
                changed[own.name] = change(value)
            elif isinstance(value, Mapping):
                changed[own.name] = {name: change(tensor) for name, tensor in value.items()}
        return replace(self, **changed)

    def __getitem__(self: Same, tokens: slice | Tensor) -> Same:
        return self.map(lambda value: value[tokens])

    def check_length(self, tokens: int) -> None:
        """Raise ValueError unless every tensor has one entry per label token."""

        def check(value: Tensor) -> Tensor:
            if len(value) != tokens:
                raise ValueError(
                    f"{type(self).__name__} has {len(value)} entries for {tokens} labels, so they would be matched "
                    "wrongly. Give one entry per label."
                )
            return value

        self.map(check)

    def to(self: Same, device: torch.device, dtype: torch.dtype) -> Same:
        """The same on `device`, floats as `dtype` and the rest as int64."""
        return self.map(lambda value: value.to(device, dtype if value.is_floating_point() else torch.int64))


@dataclass(frozen=True)
class TopK(LabelTensors):
    """The teacher's K most likely tokens at N positions, with log-probs normalized over its *full* vocabulary.

    `label_logp` is the teacher's log-prob of the observed token, which may be outside the top-k. `log_tail` is the log
    of the teacher's mass outside the slots, which cannot be computed from rounded log-probs. Empty slots have
    logp = −inf and any id.
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
        """The positions without teacher log-probs. There the residual is the student's own distribution."""
        return ~self.live.any(dim=-1)

    @cached_property
    def slots(self) -> Int[Tensor, "N K"]:
        """`ids` with the likeliest token in place of empty slots, so that every id can be gathered and scattered."""
        return torch.where(self.live, self.ids, self.ids.gather(-1, self.logps.argmax(dim=-1, keepdim=True)))

    @cached_property
    def log_outside(self) -> Float[Tensor, " N"]:
        """The log of the teacher's mass outside its slots: `log_tail`, or log(1 − mass of the slots)."""
        return log_complement(self.logps.logsumexp(dim=-1)) if self.log_tail is None else self.log_tail

    def within(self, vocab_size: int) -> "TopK":
        """The slots whose ids are below `vocab_size`, renormalized; the other slots become empty.

        Qwen heads of 151,936 and 152,064 entries share one tokenizer: only the padding differs.
        """
        # No early exit when nothing is outside: the test would cost a host-device synchronization.
        outside = (self.ids < 0) | (self.ids >= vocab_size)
        lost = self.logps.masked_fill(~outside, EMPTY).logsumexp(dim=-1, keepdim=True)
        kept = log_complement(lost)
        logps = self.logps.masked_fill(outside, EMPTY) - kept
        log_tail = None if self.log_tail is None else self.log_tail - kept[:, 0]
        return replace(self, ids=self.ids.masked_fill(outside, 0), logps=logps, log_tail=log_tail)


@dataclass(frozen=True)
class Full(LabelTensors):
    """The teacher's whole distribution at N positions for `target_loss` and the head check: nothing is truncated."""

    logps: Float[Tensor, "N V"]
    label_logp: Float[Tensor, " N"] | None = None

    def within(self, vocab_size: int) -> "Full":
        """The distribution over a head of `vocab_size` entries: cut and renormalized, or padded with empty slots."""
        size = self.logps.shape[-1]
        if size > vocab_size:
            return replace(self, logps=self.logps[:, :vocab_size].log_softmax(dim=-1))
        if size < vocab_size:
            return replace(self, logps=torch.nn.functional.pad(self.logps, (0, vocab_size - size), value=EMPTY))
        return self


@dataclass(frozen=True)
class SideInputs(LabelTensors):
    """Inputs that some targets read besides logits and teacher. Each is optional and has one value per label token.

    Args:
        ref_logp: log-prob of the label under the reference model (iw_sft).
        old_logp: log-prob of the label under the old policy (psft).
        weight: a fixed weight per token, equal within a document (iw_sft).
        critical: 1 where the token is critical (cft).
        document: index of the document that the token belongs to (iw_sft).
        columns: further columns of the data set, by name (`Column`).
        vocab_size: entries of the head that are real tokens (label_smoothing).
    """

    ref_logp: Float[Tensor, " N"] | None = None
    old_logp: Float[Tensor, " N"] | None = None
    weight: Float[Tensor, " N"] | None = None
    critical: Bool[Tensor, " N"] | Int[Tensor, " N"] | Float[Tensor, " N"] | None = None
    document: Int[Tensor, " N"] | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)
    vocab_size: int | None = None


@dataclass(frozen=True)
class TokenView:
    """What a target reads at N label tokens: the student's logits, the labels, the teacher and the side inputs.

    Args:
        lse: the log-sum-exp of the logits.
        outside: the value of `lse_outside`, if it is already known.
    """

    logits: Float[Tensor, "N V"]
    labels: Int[Tensor, " N"]
    lse: Float[Tensor, " N"]
    teacher: TopK | Full | None = None
    side: SideInputs = SideInputs()
    outside: Float[Tensor, " N"] | None = None

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "N V"],
        labels: Int[Tensor, " N"],
        teacher: TopK | Full | None = None,
        side: SideInputs | None = None,
    ) -> "TokenView":
        """Build a view from full logits. The fused head already has the log-sum-exp and builds the view directly."""
        return cls(logits, labels, logits.logsumexp(dim=-1), teacher, side or SideInputs())

    @cached_property
    def label_logp(self) -> Float[Tensor, " N"]:
        """log p_y, the student's log-prob of the observed token."""
        return self.logp_at(self.labels[:, None])[:, 0]

    def logp_at(self, ids: Int[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """The log-probs of the tokens `ids`, computed as z − lse, which does not underflow."""
        return self.logits.gather(-1, ids) - self.lse[:, None]

    @cached_property
    def lse_outside(self) -> Float[Tensor, " N"]:
        """The log-sum-exp of the logits outside the teacher's slots."""
        if self.outside is not None:
            return self.outside
        assert isinstance(self.teacher, TopK)
        return self.lse_without(self.teacher.slots)

    def lse_without(self, ids: Int[Tensor, "N K"]) -> Float[Tensor, " N"]:
        """The log-sum-exp of the logits without the tokens `ids`. 1 − Σp would lose a small tail to rounding.

        Where `ids` are the whole vocabulary it is very negative, but finite.
        """
        return self.logits.scatter(-1, ids, MASKED_LOGIT).logsumexp(dim=-1)

    @property
    def vocab_size(self) -> int:
        """The number of entries of the head that are real tokens. Heads are often padded beyond the tokenizer."""
        entries = self.logits.shape[-1]
        return min(self.side.vocab_size or entries, entries)  # a tokenizer may also be larger than the head

    def need(self, name: str, reader: str, remedy: str) -> Tensor:
        """The side input `name`. If it is missing, raises a ValueError that names its reader and a remedy."""
        value: Tensor | None = getattr(self.side, name)
        if value is None:
            raise ValueError(f"{reader} reads the side input {name!r}, which was not given. {remedy}")
        return value

    def need_teacher(self, role: str) -> TopK | Full:
        """The teacher or reference. If it is missing, raises a ValueError that names a remedy."""
        if self.teacher is None:
            raise ValueError(
                f"this target needs a {role}, but none was given. Pass `teacher=TopK(ids, logps)` to the loss, or to "
                "the trainer `teacher=` a cache directory, a model id or a model; `qsft cache build` makes a cache."
            )
        return self.teacher


def log_complement(log_mass: Tensor) -> Tensor:
    """log(1 − exp(log_mass)); the input is clamped below 0 because sums of rounded log-probs may reach it."""
    return torch.log(-torch.expm1(log_mass.clamp(max=-1e-7)))


def row_dots(a: Float[Tensor, "N V"], b: Float[Tensor, "N V"]) -> Float[Tensor, " N"]:
    """Σ_v a·b per token, without the product as a tensor; on a CPU row by row, 4× faster than einsum's bmm."""
    if a.device.type == "cpu" and len(a):
        return torch.stack([torch.dot(x, y) for x, y in zip(a, b)])
    return torch.einsum("nv,nv->n", a, b)
