"""A model as the teacher, without a cache: the same rows, computed for every batch without gradient."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from qsft.targets.view import Full, TopK
from qsft.teacher.capture import teacher_rows


class LiveTeacher:
    """The distributions of `model` at the label positions of a batch.

    k = None gives the whole vocabulary, an integer the top-k as a cache would. base = True makes a PEFT student its own
    teacher: its adapter is switched off for the call, and no second copy of the weights is needed.
    """

    def __init__(self, model: nn.Module, k: int | None = None, *, base: bool = False) -> None:
        self.model, self.k, self.base = model, k, base

    def __repr__(self) -> str:
        return f"LiveTeacher({type(self.model).__name__}, k={self.k})"

    @torch.no_grad()
    def __call__(
        self,
        input_ids: Int[Tensor, "B T"],
        labels: Int[Tensor, "B T"],
        attention_mask: Int[Tensor, "B T"] | None = None,
        position_ids: Int[Tensor, "B T"] | None = None,
    ) -> TopK | Full:
        """Rows for the positions t ≥ 1 with a label, flattened batch row after batch row."""
        training = self.model.training
        self.model.eval()  # dropout would make the teacher noisy, and the student shares its modules
        try:
            with adapter_off(self.model) if self.base else nullcontext():
                return teacher_rows(self.model, input_ids, labels, attention_mask, position_ids, self.k)
        finally:
            self.model.train(training)


def adapter_off(model: nn.Module) -> AbstractContextManager[Any]:
    """Inside, a PEFT model is its base; any other model is what it was."""
    disable: Any = getattr(model, "disable_adapter", None)
    return disable() if disable is not None else nullcontext()
