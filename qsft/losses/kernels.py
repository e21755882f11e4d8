# mypy: disable-error-code="no-untyped-def,untyped-decorator,attr-defined,no-any-return"
# ruff: noqa: ANN001, ANN201, ANN202 (kernels have types of their own)
"""Two Triton kernels that know no method: the statistics of every row of a tile, and factor·p written over it.

A tile holds products h·Wᵀ in float32; bias, logit scale and soft-cap are applied as it is read. Imported only where
triton is there; TRITON_INTERPRET=1 runs them on a CPU, which is how the tests compare them with torch.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from qsft.losses.projection import Projection

BLOCK = 4096  # columns that a program reads at a time
WARPS = 8


@dataclass(frozen=True)
class RowStatistics:
    """Of each row of logits: the largest, the log-sum-exp, the mean Σ p·z, the index of the largest."""

    top: Float[Tensor, " n"]
    lse: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]
    best: Int[Tensor, " n"]


@triton.jit
def _logits(products, bias, start, size, scale, softcap, HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """A block of a row's columns, which of them there are, and their logits."""
    columns = start + tl.arange(0, BLOCK)
    inside = columns < size
    x = tl.load(products + columns, mask=inside, other=-1.0e18)
    z = x
    if HAS_BIAS:
        z += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    z *= scale
    if CAPPED:
        z = softcap * (2.0 * tl.sigmoid(2.0 * z / softcap) - 1.0)  # tanh
    z = tl.where(x < -1.0e17, x, z)  # masked logits and the end of the row stay
    return columns, inside, z


@triton.jit
def row_statistics_kernel(
    tile, row_stride, bias, size, scale, softcap, top_out, lse_out, mean_out, best_out,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    products = tile + row * row_stride
    top = -1.0e18
    total = 0.0
    weighted = 0.0
    best = 0
    for start in range(0, size, BLOCK):
        _, inside, z = _logits(products, bias, start, size, scale, softcap, HAS_BIAS, CAPPED, BLOCK)
        block_top = tl.max(z, axis=0)
        best = tl.where(block_top > top, start + tl.argmax(z, axis=0), best)
        new_top = tl.maximum(top, block_top)
        keep = tl.exp(top - new_top)
        e = tl.where(inside, tl.exp(z - new_top), 0.0)
        total = total * keep + tl.sum(e, axis=0)
        weighted = weighted * keep + tl.sum(e * z, axis=0)
        top = new_top
    tl.store(top_out + row, top)
    tl.store(lse_out + row, top + tl.log(total))
    tl.store(mean_out + row, weighted / total)
    tl.store(best_out + row, best.to(tl.int64))


@triton.jit
def write_gradient_kernel(
    tile, row_stride, bias, size, scale, softcap, grad, grad_stride, lse_in, factor_in,
    HAS_BIAS: tl.constexpr, CAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    products = tile + row * row_stride
    lse = tl.load(lse_in + row)
    factor = tl.load(factor_in + row) * scale
    for start in range(0, size, BLOCK):
        columns, inside, z = _logits(products, bias, start, size, scale, softcap, HAS_BIAS, CAPPED, BLOCK)
        g = factor * tl.exp(z - lse)
        if CAPPED:
            g *= 1.0 - (z / softcap) * (z / softcap)
        # The gradient of a row lies over its own products and is at most as wide: a block is written behind what was
        # read, once all threads have read it.
        tl.debug_barrier()
        tl.store(grad + row * grad_stride + columns, g.to(grad.dtype.element_ty), mask=inside)


def row_statistics(tile: Float[Tensor, "n V"], bias: Tensor | None, projection: Projection) -> RowStatistics:
    """The statistics of every row of logits, in one pass over the tile; of equal ones the first is the largest."""
    top, lse, mean = torch.empty(3, len(tile), device=tile.device)
    best = torch.empty(len(tile), device=tile.device, dtype=torch.int64)
    _launch(row_statistics_kernel, tile, bias, projection, top, lse, mean, best)
    return RowStatistics(top, lse, mean, best)


def write_gradient(
    tile: Float[Tensor, "n V"],
    grad: Float[Tensor, "n V"],
    bias: Tensor | None,
    projection: Projection,
    lse: Float[Tensor, " n"],
    factor: Float[Tensor, " n"],
) -> None:
    """factor·p·∂z/∂(h·Wᵀ) into `grad`, a view of the tile's own memory."""
    _launch(write_gradient_kernel, tile, bias, projection, grad, grad.stride(0), lse, factor.contiguous())


def _launch(kernel: Any, tile: Float[Tensor, "n V"], bias: Tensor | None, projection: Projection, *rest: Any) -> None:
    """One program per row of the tile."""
    with torch.cuda.device(tile.device) if tile.is_cuda else nullcontext():
        kernel[(len(tile),)](
            tile, tile.stride(0), bias, tile.shape[-1], projection.logit_scale, projection.softcap or 1.0, *rest,
            HAS_BIAS=bias is not None, CAPPED=projection.softcap is not None,
            BLOCK=min(BLOCK, triton.next_power_of_2(tile.shape[-1])), num_warps=WARPS,
        )  # fmt: skip
