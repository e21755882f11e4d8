"""The label tokens of a batch: where they are, and the log-prob of each."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.losses.projection import (
    Projection,
    compute_dtype,
    rows_per_block,
    tile_dtype,
    tokens_per_chunk,
    write_product,
)
from qsft.targets.view import IGNORED, Full, SideInputs, TokenView, TopK

WRONG_POSITIONS = (
    "label_positions are not the positions of the labels after the first column: the labels were changed after the "
    "collator had found them. Remove label_positions from the batch; the head then finds them itself."
)


@dataclass(frozen=True)
class LabelTokens:
    """The label tokens of a batch: their positions (flattened), their ids, and their smallest and largest id.

    Finding the positions on a device takes one host-device synchronization per batch, because their number is a shape.
    A collator that found them on the CPU saves it; then `id_range` is unknown, and the device checks the positions.
    """

    index: Int[Tensor, " N"]
    labels: Int[Tensor, " N"]
    id_range: tuple[int, int] | None
    all_kept: bool

    @classmethod
    def of(cls, labels: Int[Tensor, "..."], positions: Int[Tensor, " N"] | None = None) -> "LabelTokens":
        """The tokens of `labels` that are not IGNORED, in order.

        Args:
            positions: where they are in the flattened `labels`, if known.
        """
        flat = labels.flatten()
        is_label = flat != IGNORED
        if positions is not None:
            index = positions.to(flat.device)
            if flat.device.type in ("cpu", "cuda"):  # other devices have no asynchronous assertion
                same_number = is_label.sum() == len(index)
                torch._assert_async(same_number & is_label[index].all(), WRONG_POSITIONS)
            return cls(index, flat[index], None, len(index) == flat.numel())
        if not flat.numel():
            return cls(flat, flat, None, True)
        ids = torch.where(is_label, flat, 0)
        count, smallest, largest = torch.stack([is_label.sum(), ids.min(), ids.max()]).tolist()
        # A stable sort of the flags puts the label positions first, in order, without a second synchronization.
        index = is_label.to(torch.uint8).argsort(descending=True, stable=True)[:count]
        return cls(index, flat[index], (smallest, largest), count == flat.numel())

    def to(self, device: torch.device) -> "LabelTokens":
        return replace(self, index=self.index.to(device), labels=self.labels.to(device))

    def rows(self, values: Tensor) -> Tensor:
        """The rows of these tokens in `values`, one row per token of the batch (flattened)."""
        return values if self.all_kept else values.index_select(0, self.index)

    def check(self, vocab_size: int) -> None:
        if self.id_range is None or (self.id_range[0] >= 0 and self.id_range[1] < vocab_size):
            return
        where = int(((self.labels < 0) | (self.labels >= vocab_size)).nonzero()[0])
        raise ValueError(
            f"label {int(self.labels[where])} at label position {where} is outside the head's {vocab_size} rows. "
            "Another tokenizer made the data, or the embedding was not resized; −100 marks ignored tokens."
        )


def check_lengths(rows: Tensor, labels: Tensor, teacher: TopK | Full | None, side: SideInputs | None) -> None:
    """Raise ValueError unless hidden states or logits, teacher and side inputs have one entry per label."""
    if len(rows) != len(labels):
        raise ValueError(f"there are {len(rows)} hidden states or logits for {len(labels)} labels. Give one per label.")
    for inputs in (teacher, side):
        if inputs is not None:
            inputs.check_length(len(labels))


@torch.no_grad()
def fused_label_logps(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"] | None,
    labels: Int[Tensor, " N"],
    projection: Projection,
    chunk: int | None = None,
    tile_mib: float | None = None,
) -> Float[Tensor, " N"]:
    """log p_y of every label, none of them ignored, without gradient and without full logits: one matmul in chunks."""
    device = hidden.device.type
    compute = compute_dtype(hidden, weight)
    stats = torch.promote_types(torch.float32, compute)
    in_tile = tile_dtype(compute, device)
    hidden = hidden.to(compute)
    weight = weight.to(compute)
    chunk = chunk or tokens_per_chunk(len(hidden), len(weight), in_tile, device, tile_mib=tile_mib)
    tile = hidden.new_empty((min(chunk, len(hidden)), len(weight)), dtype=in_tile)
    rows = rows_per_block(len(weight), stats, device)
    logps = [hidden.new_empty(0, dtype=stats)]
    with torch.autocast(device, enabled=False):
        for h, y in zip(hidden.split(chunk), labels.split(chunk)):
            products = write_product(h, weight.t(), out=tile[: len(h)])
            for block, block_labels in zip(products.split(rows), y.split(rows)):
                logits = projection.finish_(block.to(stats), bias)
                logps.append(TokenView.of(logits, block_labels).label_logp)
    return torch.cat(logps)
