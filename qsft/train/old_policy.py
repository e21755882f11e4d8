"""PSFT's old policy: the student's log-probs of the labels, refreshed at the start of every block of steps."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging

from qsft.losses.evaluation_mode import evaluating
from qsft.losses.head import SIDE_INPUTS, TEACHER_INPUTS, label_logps, to_bits

logger = logging.get_logger(__name__)

Batch = dict[str, Any]
OLD_LOGP = "old_logp"
SAVED = ("input_ids", OLD_LOGP)


class OldPolicy:
    """Draws the batches of the next `block_steps` optimizer steps and scores them with the student as it is then.

    Blocks end at multiples of `block_steps`, and at the end of an epoch, because the next epoch's batches are not drawn
    yet: the last block of an epoch and the first of the next may be shorter. A checkpoint inside a block saves the old
    log-probs of the batches that are still to be trained on.
    """

    def __init__(self, block_steps: int, score: Callable[[Batch], Tensor]) -> None:
        self.block_steps = block_steps
        self.score = score
        self._scored: list[Batch] = []
        self._from_checkpoint: list[dict[str, Tensor]] = []
        self._iterator: Iterator[Batch] | None = None

    def batches_of_step(self, iterator: Iterator[Batch], num_batches: int, step: int) -> Iterator[Batch]:
        """The scored batches of optimizer step `step`; draws and scores a new block when the last one is used up.

        Args:
            iterator: the epoch's iterator over batches, as Trainer passes it.
            num_batches: micro-batches per optimizer step.
        """
        if iterator is not self._iterator:  # a new epoch, or a new call of train()
            self._iterator = iterator
            self._scored = []
        if not self._scored:
            steps_left = self.block_steps - step % self.block_steps
            self._scored = self._score_block(list(islice(iterator, num_batches * steps_left)))
        served = self._scored[:num_batches]
        self._scored = self._scored[num_batches:]
        return iter(served)

    @torch.no_grad()
    def with_scores(self, batch: Batch) -> Batch:
        """The batch with the student's present log-prob of every label as `old_logp`."""
        return {**batch, OLD_LOGP: to_bits(self.score(batch).float())}

    def _score_block(self, batches: list[Batch]) -> list[Batch]:
        """Score the batches, after a resume inside a block with the log-probs that the checkpoint saved."""
        saved = self._from_checkpoint
        self._from_checkpoint = []
        if not saved:
            return [self.with_scores(batch) for batch in batches]
        same_batches = len(saved) == len(batches) and all(
            batch["input_ids"].cpu().equal(entry["input_ids"]) for batch, entry in zip(batches, saved)
        )
        if not same_batches:
            logger.warning(
                "the checkpoint's old policy belongs to other batches (another number of processes, or other data): "
                "psft refreshes it, so this run differs from an uninterrupted one until the next block."
            )
            return [self.with_scores(batch) for batch in batches]
        return [
            {**batch, OLD_LOGP: entry[OLD_LOGP].to(batch["input_ids"].device)} for batch, entry in zip(batches, saved)
        ]

    def save(self, checkpoint: Path, process_index: int) -> None:
        """Write the old log-probs of the batches that are still to be served; no file at the end of a block."""
        file = _file(checkpoint, process_index)
        file.unlink(missing_ok=True)
        tensors = {
            f"{name}.{number}": batch[name].cpu().contiguous()
            for number, batch in enumerate(self._scored)
            for name in SAVED
        }
        if tensors:
            save_file(tensors, file)

    def load(self, checkpoint: Path, process_index: int) -> None:
        """Read what `save` wrote."""
        file = _file(checkpoint, process_index)
        tensors = load_file(file) if file.is_file() else {}
        count = len(tensors) // len(SAVED)
        self._from_checkpoint = [{name: tensors[f"{name}.{number}"] for name in SAVED} for number in range(count)]


def _file(checkpoint: Path, process_index: int) -> Path:
    return checkpoint / f"old_policy_{process_index}.safetensors"


def score_labels(model: nn.Module, batch: Batch) -> Tensor:
    """The model's present log-prob of every label of the batch [B, T], in evaluation mode."""
    length = batch["labels"].shape[1]
    plain = {name: value for name, value in batch.items() if name not in (*TEACHER_INPUTS, *SIDE_INPUTS)}
    with evaluating(model):
        logps = label_logps(model, **plain)
    return logps[:, -length:]  # prompt learning puts virtual tokens before the labels
