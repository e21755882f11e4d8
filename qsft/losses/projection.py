"""The head's matrix products and the size of the tile of logits that exists at a time."""

import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

TILE_BYTES = 512 * 2**20  # the tile of logits, some 880 tokens of a 150k vocabulary
# The block that becomes p at a time; dense targets need a few more of these. Small enough for a CPU's cache, large
# enough that a GPU is not limited by launching the hundred small operations of a block.
CPU_BLOCK_BYTES = 32 * 2**20
GPU_BLOCK_BYTES = 256 * 2**20


def tokens_per_chunk(
    tokens: int, vocab_size: int, dtype: torch.dtype, hidden_size: int = 0, tile_bytes: int | None = None
) -> int:
    """How many tokens to project at a time: as many as fit `tile_bytes`, or `hidden_size` if that is more; evenly.

    Args:
        dtype: of the tile.
        hidden_size: H when the weight's gradient [V, H] is needed, else 0: each chunk reads and writes all of it, so
            that with tiles much smaller than it most of the time would go there.
        tile_bytes: by default TILE_BYTES.
    """
    chunks = math.ceil(tokens / max(_rows_within(tile_bytes or TILE_BYTES, vocab_size, dtype), hidden_size))
    return max(1, math.ceil(tokens / max(1, chunks)))


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
    elif a.dtype == torch.bfloat16:
        product = torch.mm(a, b)
        if first:
            total.copy_(product)
        else:
            total.add_(product)
    else:  # float16 would overflow at a sum of 65,504, before any loss scale could help: it is widened
        total.addmm_(a.to(total.dtype), b.to(total.dtype), beta=beta)


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
