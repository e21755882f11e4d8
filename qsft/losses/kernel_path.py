"""The path with Triton kernels, for targets that read logits only at chosen tokens, such as label and teacher slots.

The kernels know no method: one reduces each row of a tile to its statistics, the other writes factor·p over it. Between
them the target runs as plain Python, on [n, K+1] numbers. A target that reads more of the tile, or has a distribution
without a support, is recognized before the first tile and takes the torch path (fused.TorchTile).
"""

import os
from enum import Enum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from qsft.losses.projection import Projection, in_place_as, rows_per_block
from qsft.losses.sums import token_sums
from qsft.targets.view import EMPTY, MASKED_LOGIT, TopK
from qsft.validation import check_choice

if TYPE_CHECKING:
    from qsft.losses.fused import Spec
    from qsft.losses.kernels import RowStatistics

HEAD_KERNELS = ("auto", "torch", "triton")
_READABLE = {getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device")} | {Tensor.size, Tensor.__len__}


class WholeTileRead(Exception):
    """A target read more of the logits than chosen tokens."""


class GatherOnly(Tensor):
    """A tile of products h·Wᵀ that returns logits at chosen tokens (`gather`) and nothing else."""

    projection: Projection
    bias: Tensor | None

    @classmethod
    def of(cls, products: Float[Tensor, "n V"], projection: Projection, bias: Tensor | None) -> "GatherOnly":
        tile = products.as_subclass(cls)
        tile.projection = projection
        tile.bias = bias
        return tile

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.gather:
                tile, dim, ids = args
                bias = None if tile.bias is None else tile.bias[ids]
                return tile.projection.finish_(tile.as_subclass(Tensor).gather(dim, ids), bias)
            if func in _READABLE:
                return func(*args, **(kwargs or {}))
        raise WholeTileRead(getattr(func, "__name__", str(func)))


def takes_kernels(head_kernel: str, device: str) -> bool:
    """Whether the kernels are used on this type of device.

    Raises:
        ValueError: they are requested and cannot run.
    """
    check_choice("head_kernel", head_kernel, HEAD_KERNELS)
    available = find_spec("triton") is not None and (device == "cuda" or "TRITON_INTERPRET" in os.environ)
    if head_kernel == "triton" and not available:
        raise ValueError(
            'head_kernel="triton" needs triton and a CUDA or ROCm device; "auto" uses it where they are available.'
        )
    if head_kernel == "auto":
        return available and device == "cuda"
    return available and head_kernel == "triton"


def kernel_tile(spec: "Spec", bias: Tensor | None, tile: Float[Tensor, "n V"]) -> "KernelTile | None":
    """The kernel path, if it is requested and available and the target can take it; else None."""
    if not takes_kernels(spec.head_kernel, tile.device.type) or tile.dtype != torch.float32 or not len(tile):
        return None
    part = find_part_read(spec, tile)
    if part is TilePart.WHOLE:
        return None
    return KernelTile(spec, bias, outside=part is TilePart.SLOTS_AND_OUTSIDE)


class TilePart(Enum):
    """What a target reads of a tile."""

    SLOTS = "logits at the label and the teacher's slots"
    SLOTS_AND_OUTSIDE = "those, and the log-sum-exp of all other logits"
    WHOLE = "all logits"


def find_part_read(spec: "Spec", tile: Float[Tensor, "n V"]) -> TilePart:
    """Return what the target reads of a tile.

    Found by running it on the first token over a tile of zeros that takes no memory; no value is read.
    """
    lse = tile.new_zeros(1)
    logits = GatherOnly.of(tile.new_zeros(1, 1).expand(1, tile.shape[-1]), Projection(), None)
    for outside in (None, lse):
        try:
            q = spec.target(spec.view(slice(1), logits, lse, outside))
        except WholeTileRead:
            continue
        if q.support() is None:
            return TilePart.WHOLE
        return TilePart.SLOTS if outside is None else TilePart.SLOTS_AND_OUTSIDE
    return TilePart.WHOLE


class KernelTile:
    """What happens to a tile of products h·Wᵀ between the matmuls, in two kernels; equal to TorchTile."""

    def __init__(self, spec: "Spec", bias: Tensor | None, outside: bool) -> None:
        self.spec = spec
        self.bias = bias
        self.outside = outside
        width = 1 + (spec.teacher.ids.shape[-1] if isinstance(spec.teacher, TopK) else 0)
        self.rows = rows_per_block(width * width, spec.stats_dtype, "cuda")  # tokens are compared with tokens

    def gradient_over_logits_(self, z: Float[Tensor, "n V"], rows: slice) -> tuple[Tensor, Tensor]:
        """The loss and the sums of these rows; ∂loss/∂(h·Wᵀ) takes the place of their products: see `gradient`."""
        from qsft.losses import kernels

        spec = self.spec
        logits = GatherOnly.of(z, spec.projection, self.bias)
        if self.outside and isinstance(spec.teacher, TopK):
            row, outside = self._statistics_and_outside(z, logits, spec.teacher[rows].slots)
        else:
            row = kernels.row_statistics(z, self.bias, spec.projection)
            outside = None
        view = spec.view(rows, logits, row.lse, outside)
        q = spec.target(view)
        loss_and_sums = token_sums(view, q, row.lse - row.mean, row.best)
        if any(spec.grad_of):
            columns: Any = q.support()  # not None: checked before the first tile
            at = logits.gather(-1, columns)
            values = q.gradient_at(columns, (at - row.lse[:, None]).exp(), q.scale) * spec.projection.slope(at)
            factor = q.scale * q.student_factor()
            kernels.write_gradient(z, self.gradient(z), self.bias, spec.projection, row.lse, factor)
            self.gradient(z).scatter_(-1, columns, values.to(spec.compute_dtype))
        return loss_and_sums

    def gradient(self, z: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        """Where the gradient of the rows `z` is written: over them, in the dtype of the matmuls."""
        return in_place_as(z, self.spec.compute_dtype)

    def _statistics_and_outside(
        self, z: Float[Tensor, "n V"], logits: GatherOnly, slots: Int[Tensor, "n K"]
    ) -> tuple["RowStatistics", Float[Tensor, " n"]]:
        """The statistics of the rows and their log-sum-exp outside the slots, which are emptied for the one pass."""
        from qsft.losses import kernels

        products = z.gather(-1, slots)
        at = logits.gather(-1, slots)
        rest = kernels.row_statistics(z.scatter_(-1, slots, MASKED_LOGIT), self.bias, self.spec.projection)
        z.scatter_(-1, slots, products)
        repeated = (slots[:, :, None] == slots[:, None, :]).tril(-1).any(dim=-1)
        once = at.masked_fill(repeated, EMPTY)
        lse = torch.logaddexp(rest.lse, once.logsumexp(dim=-1))
        mean = (rest.lse - lse).exp() * rest.mean + ((once - lse[:, None]).exp() * at).sum(dim=-1)
        # The first of the largest, among the slots and outside them.
        top = torch.maximum(once.amax(dim=-1), rest.top)
        best = slots.masked_fill(once != top[:, None], z.shape[-1]).amin(dim=-1)
        best = torch.minimum(best, rest.best.masked_fill(rest.top != top, z.shape[-1]))
        return kernels.RowStatistics(top, lse, mean, best), rest.lse
