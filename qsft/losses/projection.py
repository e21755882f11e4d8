"""The head's matrix products and the size of the tile of logits that exists at a time."""

import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

MIB = 2**20
# Tokens that are projected at a time on a CPU. Measured (docs/benchmarks.md, "The size of the tile"): fewer are slower,
# because every chunk reads and writes the whole gradient of the weight; more need memory and are not faster.
CPU_CHUNK_TOKENS = 512
# The tile of logits on a GPU, some 880 tokens of a 150k vocabulary. Its matmuls are so fast that the traffic of the
# weight's gradient matters up to larger chunks than on a CPU. Not measured.
GPU_TILE_BYTES = 512 * MIB
# The block that becomes p at a time; dense targets need a few more of these. Small enough for a CPU's cache, large
# enough that a GPU is not limited by launching the hundred small operations of a block.
CPU_BLOCK_BYTES = 8 * MIB
GPU_BLOCK_BYTES = 256 * MIB


def tokens_per_chunk(
    tokens: int,
    vocab_size: int,
    dtype: torch.dtype,
    device: str,
    hidden_size: int = 0,
    tile_mib: float | None = None,
) -> int:
    """How many tokens to project at a time: chunks of equal size, whose tile is at most `tile_mib` large.

    Args:
        dtype: of the tile.
        device: type of the device, such as "cpu" or "cuda".
        hidden_size: H when the weight's gradient [V, H] is needed, else 0. By default a GPU then projects at least H
            tokens at a time: the tile is as large as that gradient, which every chunk reads and writes.
        tile_mib: by default CPU_CHUNK_TOKENS tokens on a CPU, GPU_TILE_BYTES on other devices. One token is the least.
    """
    if tile_mib is not None:
        most = _rows_within(int(tile_mib * MIB), vocab_size, dtype)
    elif device == "cpu":
        most = CPU_CHUNK_TOKENS
    else:
        most = max(_rows_within(GPU_TILE_BYTES, vocab_size, dtype), hidden_size)
    chunks = max(1, math.ceil(tokens / most))
    return max(1, math.ceil(tokens / chunks))


def rows_per_block(vocab_size: int, dtype: torch.dtype, device: str) -> int:
    """How many rows of a tile to turn into gradients at a time on this type of device."""
    return _rows_within(CPU_BLOCK_BYTES if device == "cpu" else GPU_BLOCK_BYTES, vocab_size, dtype)


def _rows_within(size: int, columns: int, dtype: torch.dtype) -> int:
    return max(1, size // (columns * dtype.itemsize))


@dataclass(frozen=True)
class Projection:
    """How hidden states become logits: (h·Wᵀ + bias)·logit_scale, then soft-capped."""

    softcap: float | None = None
    logit_scale: float = 1.0

    def __call__(self, h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Float[Tensor, "n V"]:
        return self.finish_(write_product(h, weight.t(), out), bias)

    def finish_(self, z: Float[Tensor, "n C"], bias: Tensor | None) -> Float[Tensor, "n C"]:
        """Products h·Wᵀ become logits, in place."""
        if bias is not None:
            z += bias
        if self.logit_scale != 1.0:
            z *= self.logit_scale
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z

    def slope(self, z: Float[Tensor, "n C"]) -> Tensor | float:
        """∂z/∂(h·Wᵀ) at the logits `z`."""
        return self.logit_scale if self.softcap is None else (1.0 - (z / self.softcap) ** 2) * self.logit_scale


def compute_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """What F.linear would compute in: the autocast dtype when it is on, else the wider of the two."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return torch.promote_types(hidden.dtype, weight.dtype)


def tile_dtype(compute: torch.dtype, device: str, *, kernels: bool = False) -> torch.dtype:
    """The dtype of the tile of logits for matmuls in `compute`: at least float32, except for bf16 on a CPU.

    A CPU cannot multiply bf16 into float32, so that a float32 tile would be a second, no more precise copy. The kernels
    read float32 only.
    """
    if device == "cpu" and compute == torch.bfloat16 and not kernels:
        return compute
    return torch.promote_types(torch.float32, compute)


def weight_gradient_dtype(
    weight: torch.dtype, compute: torch.dtype, tile: torch.dtype, *, one_chunk: bool
) -> torch.dtype:
    """The dtype that the matmuls write the gradient of a weight of dtype `weight` in; backward casts it to that dtype.

    Several chunks are summed in float32. One chunk of bf16 is written as bf16 at once, as F.linear's backward does:
    [V, H] is often the largest tensor of the head. float16 could overflow before the loss is scaled down.
    """
    if not one_chunk:
        return torch.promote_types(torch.float32, compute)
    return torch.bfloat16 if weight == compute == torch.bfloat16 else tile


def in_place_as(tile: Float[Tensor, "n V"], dtype: torch.dtype) -> Float[Tensor, "n V"]:
    """The memory of `tile` as numbers of a `dtype` that is at most as wide: the front of each row's memory."""
    return tile.view(dtype)[:, : tile.shape[-1]]


def write_product(a: Float[Tensor, "n m"], b: Float[Tensor, "m k"], out: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """a·b in `out`, which may be wider: not rounded in between where the device supports it."""
    if a.dtype == out.dtype:
        return torch.mm(a, b, out=out)
    if has_wide_products(a.device, a.dtype, out.dtype):
        torch.ops.aten.mm.dtype_out(a, b, out.dtype, out=out)
        return out
    return out.copy_(torch.mm(a, b))


def add_product(total: Float[Tensor, "n k"], a: Tensor, b: Tensor, *, first: bool) -> None:
    """total += a·b, or total = a·b when it is the first, whatever `total` held (NaN too)."""
    beta = 0.0 if first else 1.0
    if has_wide_products(a.device, a.dtype, total.dtype):
        torch.ops.aten.addmm.dtype_out(total, a, b, total.dtype, beta=beta, out=total)
    elif a.dtype == total.dtype:
        torch.addmm(total, a, b, beta=beta, out=total)
    else:
        _add_narrow_product(total, a, b, first=first)


def _add_narrow_product(total: Float[Tensor, "n k"], a: Tensor, b: Tensor, *, first: bool) -> None:
    """`add_product` where the device cannot multiply into the wider dtype of `total`.

    It goes over `total` in blocks: a product of the whole shape would double the memory, and on a CPU writing and
    reading it took two thirds of the time of the matmul itself (512 tokens, H=576, V=49,152).
    """
    rows = rows_per_block(total.shape[-1], a.dtype, total.device.type)
    buffer = a.new_empty(min(rows, len(total)), total.shape[-1])
    for start in range(0, len(total), rows):
        block = total[start : start + rows]
        factor = a[start : start + rows]
        if a.dtype == torch.bfloat16:
            product = torch.mm(factor, b, out=buffer[: len(block)])
        else:  # float16 would overflow at a sum of 65,504, before any loss scale could help: it is widened
            product = torch.mm(factor.to(total.dtype), b.to(total.dtype))
        if first:
            block.copy_(product)
        else:
            block.add_(product)


@functools.cache
def has_wide_products(device: torch.device, narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Whether the device multiplies matrices of one dtype into another, wider one."""
    if device.type == "cpu" or narrow == wide:
        return False
    try:
        small = torch.zeros(16, 16, device=device, dtype=narrow)
        torch.ops.aten.mm.dtype_out(small, small, wide, out=small.to(wide))
    except (AttributeError, RuntimeError):  # an older torch; NotImplementedError is a RuntimeError
        return False
    return True
