"""log p of the labels alone: what a reference or an old policy thinks of them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.losses.matmuls import Projection, compute_dtype, rows_per_block, tokens_per_chunk
from qsft.targets.view import TokenView


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
