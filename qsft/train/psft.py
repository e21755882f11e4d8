"""PSFT's old policy: a block of batches is scored by the student as it is, then served with those log-probs."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from qsft.losses.head import to_bits

logger = logging.get_logger(__name__)

Batch = dict[str, Any]


class Block:
    """Batches of the next `steps` optimiser steps, each with `old_logp`: the label log-probs at the block's start.

    Blocks end at multiples of `steps`, so that a run resumed there scores what the first run scored. They also end with
    the epoch, whose successor's batches are not drawn yet: the last block before and the first after may be short.
    """

    def __init__(self, steps: int, score: Callable[[Batch], Tensor]) -> None:
        self.steps = steps
        self.score = score
        self.batches: list[Batch] = []
        self.source: Iterator[Batch] | None = None

    def serve(self, source: Iterator[Batch], count: int, step: int) -> Iterator[Batch]:
        """The `count` batches of optimiser step `step`; a new block is drawn and scored when the last is used up."""
        if source is not self.source:  # a new epoch or a new call of train(): what was left belongs to the old one
            self.source, self.batches = source, []
        if not self.batches:
            steps = self.steps - step % self.steps
            self.batches = [self.scored(batch) for batch in islice(source, count * steps)]
        served, self.batches = self.batches[:count], self.batches[count:]
        return iter(served)

    @torch.no_grad()
    def scored(self, batch: Batch) -> Batch:
        """The batch with the student's present log-prob of every label, as bits."""
        return {**batch, "old_logp": to_bits(self.score(batch).float())}

    def warn_if_open(self, step: int) -> None:
        """Say that a checkpoint inside a block does not resume exactly: the old policy is not saved."""
        if self.batches:
            logger.warning(
                f"checkpoint-{step} falls inside a block of {self.steps} steps: resuming from it refreshes psft's old "
                "policy there, so the run will not be the same. Make save_steps a multiple of psft_block_steps."
            )
