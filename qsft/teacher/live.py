"""A live teacher: a model that computes its log-probs for every batch of training."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from qsft.losses.evaluation_mode import evaluating
from qsft.losses.head import base_causal_lm
from qsft.targets.view import TopK
from qsft.teacher.documents import Documents, check_token_ids
from qsft.teacher.log_probs import check_teacher_head, head_size, teacher_log_probs


class LiveTeacher:
    """The log-probs of `model` at the label positions of a batch.

    A call needs no host-device synchronization. What it finds wrong (log-probs that are not finite, tokens the teacher
    does not know) is kept in a tensor until `raise_if_invalid` reads it.

    Args:
        model: a causal LM.
        k: slots per label position, as in a cache.
        is_student: whether `model` is a PEFT student that is its own teacher. Its adapters are disabled for the call,
            and no second copy of the weights is needed.
        shared_ids: the number of ids that mean the same to the teacher and to the tokenizer of the data; None for all.
    """

    def __init__(self, model: nn.Module, k: int, *, is_student: bool = False, shared_ids: int | None = None) -> None:
        self.model = model
        self.k = k
        self.is_student = is_student
        self.shared_ids = shared_ids
        self._head_checked = False
        self._nonfinite: Tensor | None = None
        self._unknown_token: Tensor | None = None

    def __repr__(self) -> str:
        return f"LiveTeacher({type(self.model).__name__}, k={self.k})"

    @torch.no_grad()
    def __call__(
        self,
        input_ids: Int[Tensor, "B T"],
        labels: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"] | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
        label_positions: Int[Tensor, " N"] | None = None,
    ) -> TopK:
        """Return the log-probs at the positions t ≥ 1 with a label, sequence after sequence.

        Args:
            label_positions: those positions in the flattened labels[:, 1:], where a collator found them.
        """
        input_ids, labels = self._replace_unknown(input_ids, labels, attention_mask, position_ids)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        without_adapters = adapters_disabled(self.model) if self.is_student else nullcontext()
        with evaluating(self.model), without_adapters:
            if not self._head_checked:
                check_teacher_head(self.model, **inputs)
                self._head_checked = True
            log_probs: Any = teacher_log_probs(
                self.model, self.k, **inputs, labels=labels, label_positions=label_positions
            )
        # NaN and infinite logits make the normalizer NaN, and with it every log-prob of the position.
        self._nonfinite = _accumulate(self._nonfinite, torch.isnan(log_probs.label_logp).any())
        return log_probs  # type: ignore[no-any-return]

    def raise_if_invalid(self) -> None:
        """Raise if a call since the last check gave invalid log-probs; this synchronizes with the device.

        Raises:
            ValueError: if log-probs were NaN or infinite, or a document held a token without an embedding.
        """
        nonfinite = self._nonfinite is not None and bool(self._nonfinite)
        unknown = self._unknown_token is not None and int(self._unknown_token)
        self._nonfinite = None
        self._unknown_token = None
        name = type(base_causal_lm(self.model)).__name__
        if nonfinite:
            raise ValueError(
                f"the live teacher {name} returned NaN or infinite log-probs since the last check, so the losses since "
                "then are wrong. Its weights may be damaged, or its dtype too narrow: try float32 or bfloat16."
            )
        if unknown:
            raise ValueError(
                f"a batch holds the token id {unknown}, but the live teacher {name} has {self._vocab_size} token "
                "embeddings. Tokenize the data with a tokenizer that the teacher shares."
            )

    def check_documents(self, documents: Documents) -> None:
        """Raise ValueError before the first step if a document holds a token that the teacher does not know."""
        check_token_ids(documents, self._vocab_size, self.shared_ids)

    @property
    def _vocab_size(self) -> int:
        return head_size(self.model)

    def _replace_unknown(
        self,
        input_ids: Int[Tensor, "B T"],
        labels: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"] | None,
        position_ids: Int[Tensor, "B T"] | None,
    ) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """Replace ids that have no embedding: a pad token added to the student's tokenizer may be one.

        Elsewhere than in padding such an id is an error, which `raise_if_invalid` raises.
        """
        size = self._vocab_size
        unknown_input = (input_ids >= size) & ~_is_padding(input_ids, attention_mask, position_ids)
        unknown_label = labels >= size
        largest = torch.where(unknown_input, input_ids, 0).amax()
        largest = torch.maximum(largest, torch.where(unknown_label, labels, 0).amax().to(largest.device))
        self._unknown_token = _accumulate(self._unknown_token, largest)
        input_ids = torch.where(input_ids >= size, 0, input_ids)
        labels = torch.where(unknown_label, 0, labels)
        return input_ids, labels


def adapters_disabled(model: nn.Module) -> AbstractContextManager[Any]:
    """Inside, a PEFT model is its base; any other model is unchanged."""
    disable: Any = getattr(model, "disable_adapter", None)
    return disable() if disable is not None else nullcontext()


def _accumulate(previous: Tensor | None, new: Tensor) -> Tensor:
    """The larger of two scalars on the device, without reading either."""
    return new if previous is None else torch.maximum(previous, new.to(previous.device))


def _is_padding(
    input_ids: Int[Tensor, "B T"],
    attention_mask: Int[Tensor, "B T"] | None,
    position_ids: Int[Tensor, "B T"] | None,
) -> Bool[Tensor, "B T"]:
    """Which tokens only pad: masked ones, or in a padding-free batch the positions 0 that no position 1 follows."""
    if attention_mask is not None:
        return attention_mask == 0
    if position_ids is None:
        return torch.zeros_like(input_ids, dtype=torch.bool)
    following = nn.functional.pad(position_ids[:, 1:], (0, 1))
    return (position_ids == 0) & (following == 0)
