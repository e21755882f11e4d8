"""The labels of a batch: where they are, found once since every wait for the device is dear, and log p of each."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.losses.matmuls import Projection, compute_dtype, rows_per_block, tokens_per_chunk
from qsft.targets.view import IGNORED, TokenView

WRONG_COUNT = (
    "label_count is not the number of labels after the first column: they were changed after the collator had counted "
    "them. Take label_count out of the batch; the head then counts them itself."
)


@dataclass(frozen=True)
class LabelTokens:
    """The label tokens of a batch: where they stand in it (flattened), which they are, and their smallest and largest.

    Only this waits for the device, once a batch, and not at all if somebody counted the labels before (`count`); what
    comes after it knows all shapes. Then the range is not known: the device itself finds a wrong label or count.
    """

    index: Int[Tensor, " N"]
    labels: Int[Tensor, " N"]
    span: tuple[int, int] | None
    all_kept: bool

    @classmethod
    def of(cls, labels: Int[Tensor, "..."], count: int | None = None) -> "LabelTokens":
        """The tokens of `labels` that are not IGNORED, in order."""
        flat = labels.flatten()
        keep, span = flat != IGNORED, None
        if count is None and flat.numel():
            kept = torch.where(keep, flat, 0)
            count, *ends = torch.stack([keep.sum(), kept.min(), kept.max()]).tolist()
            span = (ends[0], ends[1])
        elif count is not None and flat.device.type in ("cpu", "cuda"):  # whoever changed labels after the count
            torch._assert_async(keep.sum() == count, WRONG_COUNT)
        count = count or 0
        index = keep.to(torch.uint8).argsort(descending=True, stable=True)[:count]
        return cls(index, flat[index], span, count == flat.numel())

    def to(self, device: torch.device) -> "LabelTokens":
        return replace(self, index=self.index.to(device), labels=self.labels.to(device))

    def rows(self, values: Tensor) -> Tensor:
        """The rows of these tokens in `values`, one row per token of the batch (flattened)."""
        return values if self.all_kept else values.index_select(0, self.index)

    def check(self, vocab_size: int) -> None:
        if self.span is None or (self.span[0] >= 0 and self.span[1] < vocab_size):
            return
        where = int(((self.labels < 0) | (self.labels >= vocab_size)).nonzero()[0])
        raise ValueError(
            f"label {int(self.labels[where])} at label position {where} is outside the head's {vocab_size} rows. "
            "Another tokenizer made the data, or the embedding was not resized; −100 marks ignored tokens."
        )


@torch.no_grad()
def fused_label_logps(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    bias: Float[Tensor, " V"] | None,
    labels: Int[Tensor, " N"],
    projection: Projection,
    chunk: int | None = None,
) -> Float[Tensor, " N"]:
    """log p_y of every label, none of them ignored, without gradient and without full logits: one matmul in chunks."""
    compute, stats = compute_dtype(hidden, weight), torch.promote_types(torch.float32, hidden.dtype)
    hidden, weight = hidden.to(compute), weight.to(compute)
    chunk = chunk or tokens_per_chunk(len(hidden), len(weight), stats)
    tile = hidden.new_empty((min(chunk, len(hidden)), len(weight)), dtype=stats)
    size = rows_per_block(len(weight), stats, hidden.device.type)
    logps = [hidden.new_empty(0, dtype=stats)]
    with torch.autocast(hidden.device.type, enabled=False):
        for h, y in zip(hidden.split(chunk), labels.split(chunk)):
            z = projection(h, weight, bias, out=tile[: len(h)])
            logps += [TokenView.of(*block).label_logp for block in zip(z.split(size), y.split(size))]
    return torch.cat(logps)
