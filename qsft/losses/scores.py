"""log p of the labels alone: what a reference or an old policy thinks of them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.losses.matmuls import Projection, compute_dtype, rows_per_block, tokens_per_chunk
from qsft.losses.positions import LabelTokens
from qsft.targets.view import TokenView


def fused_label_logps(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    labels: Int[Tensor, " N"] | LabelTokens,
    *,
    bias: Float[Tensor, " V"] | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    chunk: int | None = None,
) -> Float[Tensor, " N"]:
    """log p_y of every label, without gradient and without full logits: one matmul in chunks."""
    labels = LabelTokens.of(labels) if isinstance(labels, Tensor) else labels
    labels.check(len(weight))
    stats = torch.promote_types(torch.float32, hidden.dtype)
    chunk = chunk or tokens_per_chunk(len(hidden), len(weight), stats)
    compute, projection = compute_dtype(hidden, weight), Projection(softcap, logit_scale)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        return chunked_label_logps(
            hidden.to(compute), weight.to(compute), bias, labels.labels, projection, chunk, stats
        )


def chunked_label_logps(
    h: Tensor, w: Tensor, bias: Tensor | None, labels: Tensor, projection: Projection, chunk: int, stats: torch.dtype
) -> Float[Tensor, " N"]:
    """The same with everything decided: dtypes cast, labels known."""
    tile = h.new_empty((min(chunk, len(h)), len(w)), dtype=stats)
    size = rows_per_block(len(w), stats, h.device.type)
    logps = [h.new_empty(0, dtype=stats)]
    for h_chunk, y in zip(h.split(chunk), labels.split(chunk)):
        z = projection(h_chunk, w, bias, out=tile[: len(h_chunk)])
        logps += [TokenView.of(*block).label_logp for block in zip(z.split(size), y.split(size))]
    return torch.cat(logps)
