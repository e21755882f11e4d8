"""A live teacher: a model that computes its log-probs for every batch of training."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from qsft.losses.evaluation_mode import evaluating
from qsft.targets.view import Full, TopK
from qsft.teacher.log_probs import check_teacher_head, teacher_log_probs


class LiveTeacher:
    """The distributions of `model` at the label positions of a batch.

    k = None gives the whole vocabulary, an integer the top-k as a cache would. base = True makes a PEFT student its own
    teacher: its adapter is switched off for the call, and no second copy of the weights is needed.
    """

    def __init__(self, model: nn.Module, k: int | None = None, *, base: bool = False) -> None:
        self.model, self.k, self.base = model, k, base
        self._checked = False

    def __repr__(self) -> str:
        return f"LiveTeacher({type(self.model).__name__}, k={self.k})"

    @torch.no_grad()
    def __call__(
        self,
        input_ids: Int[Tensor, "B T"],
        labels: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"] | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
        label_count: int | None = None,
    ) -> TopK | Full:
        """Log-probs at the positions t ≥ 1 with a label (`label_count` of them), sequence after sequence."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        with evaluating(self.model), adapters_disabled(self.model) if self.base else nullcontext():
            if not self._checked:
                check_teacher_head(self.model, **inputs)
                self._checked = True
            return teacher_log_probs(self.model, self.k, **inputs, labels=labels, label_count=label_count)


def adapters_disabled(model: nn.Module) -> AbstractContextManager[Any]:
    """Inside, a PEFT model is its base; any other model is what it was."""
    disable: Any = getattr(model, "disable_adapter", None)
    return disable() if disable is not None else nullcontext()
