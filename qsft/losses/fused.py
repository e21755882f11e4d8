"""One fused head for every target: chunked linear + target + (p − Q), never the full logits.

Because the gradient of every target is scale·(p − Q), no method needs a kernel of its own. Per chunk of tokens:

    one matmul fills a tile of logits
    block by block: logits → p, TokenView → Q → value, then scale·(p − Q) written over the logits
    two matmuls read the tile, now a gradient

Matmuls are fast on large tiles; everything else works on a small block, so only one tile exists. The gradients are
computed while it does: three matmuls in all, none repeated; two when the weight is frozen; one when no gradient is
needed; one more for targets whose scale depends on whole documents. On a GPU the second line is two kernels
(kernel_path.py) for every target that reads the logits only at chosen tokens.

Precision and memory: statistics are float32. So is the tile, where the device multiplies bf16 into float32; with bf16
on a CPU it is bf16, as F.linear's logits would be, and only one block at a time is converted to float32. The gradient
lies over the logits in the dtype of the matmuls, so that no second tile exists. The weight's gradient is summed over
chunks in float32; a single chunk writes it in its own dtype.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from qsft.losses.kernel_path import kernel_tile, takes_kernels
from qsft.losses.label_tokens import LabelTokens, check_lengths, fused_label_logps
from qsft.losses.projection import (
    Projection,
    add_product,
    compute_dtype,
    in_place_as,
    rows_per_block,
    tile_dtype,
    tokens_per_chunk,
    weight_gradient_dtype,
    write_product,
)
from qsft.losses.sums import SUM_NAMES, token_sums
from qsft.targets.target import Mixture, Target, check_is_target
from qsft.targets.view import Full, SideInputs, TokenView, TopK, row_dots


@dataclass(frozen=True)
class Spec:
    """Everything the fused function needs beside the three differentiable tensors."""

    labels: Int[Tensor, " N"]
    target: Target
    teacher: TopK | Full | None
    side: SideInputs
    projection: Projection
    chunk: int
    compute_dtype: torch.dtype  # of the matmuls' operands, the gradient of the logits among them
    stats_dtype: torch.dtype  # of the statistics and of gradients that are summed over chunks
    tile_dtype: torch.dtype  # of the tile of logits
    grad_of: tuple[bool, bool, bool]  # hidden, weight, bias
    head_kernel: str

    def view(self, rows: slice, logits: Tensor, lse: Tensor, outside: Tensor | None = None) -> TokenView:
        """What the target reads of these tokens, whose logits are `logits`."""
        teacher = None if self.teacher is None else self.teacher[rows]
        return TokenView(logits, self.labels[rows], lse, teacher, self.side[rows], outside)


@dataclass(frozen=True)
class FusedOutput:
    """The loss sum (differentiable) and the sums that the metrics need, under SUM_NAMES."""

    loss: Float[Tensor, ""]
    sums: Float[Tensor, " M"]

    @property
    def metrics(self) -> dict[str, float]:
        """The sums by name, on the host."""
        return dict(zip(SUM_NAMES, self.sums.tolist()))


def fused_target_loss(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    labels: Int[Tensor, " N"] | LabelTokens,
    target: Target,
    teacher: TopK | Full | None = None,
    *,
    side: SideInputs | None = None,
    bias: Float[Tensor, " V"] | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    chunk: int | None = None,
    tile_mib: float | None = None,
    head_kernel: str = "auto",
) -> FusedOutput:
    """The sum of scale·CE(Q, p) over label tokens, equal to `target_loss` for the logits hidden·weightᵀ.

    The full logits are never built.

    Args:
        labels: token ids, of which −100 is ignored. LabelTokens contain no −100, which saves a host-device
            synchronization.
        chunk: the number of tokens that are projected at a time. By default `tokens_per_chunk` chooses it.
        tile_mib: the maximum memory for the tile of logits, in MiB. Default: 512 tokens on a CPU; on a GPU 512 MiB, or
            as many tokens as hidden states have entries.
        head_kernel: "torch", "triton" or "auto". "auto" uses triton on a GPU if it is installed.

    >>> from qsft.targets.registry import make_target
    >>> out = fused_target_loss(torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([1, 0]), make_target("sft"))
    >>> round(out.loss.item(), 4)   # 2·ln 4
    2.7726
    """
    check_is_target(target)
    if isinstance(labels, Tensor):
        check_lengths(hidden, labels, teacher, side)
        labels = LabelTokens.of(labels)
        hidden = labels.rows(hidden)
        teacher = None if teacher is None else teacher.map(labels.rows)
        side = None if side is None else side.map(labels.rows)
    labels.check(len(weight))
    if isinstance(teacher, TopK) and teacher.ids.shape[-1] > len(weight):
        raise ValueError(
            f"the teacher has {teacher.ids.shape[-1]} tokens per position, but the head has only {len(weight)} "
            "entries. Pass a TopK with fewer slots, or Full with the whole distribution."
        )
    device = hidden.device.type
    compute = compute_dtype(hidden, weight)
    stats = torch.promote_types(torch.float32, compute)
    tile = tile_dtype(compute, device, kernels=takes_kernels(head_kernel, device))
    # Inside a Function grad mode is always off and needs_input_grad ignores no_grad, so it is decided out here.
    enabled = torch.is_grad_enabled()
    grad_of = tuple(enabled and t is not None and t.requires_grad for t in (hidden, weight, bias))
    summed_size = hidden.shape[-1] if grad_of[1] else 0
    spec = Spec(
        labels=labels.labels,
        target=target,
        teacher=None if teacher is None else teacher.to(hidden.device, stats).within(len(weight)),
        side=(side or SideInputs()).map(lambda value: value.to(hidden.device)),
        projection=Projection(softcap, logit_scale),
        chunk=chunk or tokens_per_chunk(len(hidden), len(weight), tile, device, summed_size, tile_mib),
        compute_dtype=compute,
        stats_dtype=stats,
        tile_dtype=tile,
        grad_of=grad_of,  # type: ignore[arg-type]
        head_kernel=head_kernel,
    )
    return FusedOutput(*_FusedTargetLoss.apply(hidden, weight, bias, spec))


class _FusedTargetLoss(torch.autograd.Function):
    """loss, sums = f(hidden, weight, bias); the gradients are ready when forward returns."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden.device.type, enabled=False):
            loss, sums, grads = _forward(hidden, weight, bias, spec)
        ctx.gradients = grads
        ctx.dtypes = (hidden.dtype, weight.dtype, None if bias is None else bias.dtype)
        ctx.mark_non_differentiable(sums)
        return loss, sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError(
                "the fused head's gradients were already handed out: a second backward through the same loss is not "
                "possible, since the logits they came from are gone. Call the loss again."
            )
        gradients, ctx.gradients = ctx.gradients, None
        scaled = [
            None if gradient is None else _scaled(gradient, grad_loss, dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        ]
        return (*scaled, None)


def _scaled(gradient: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """gradient·factor in `dtype`; `gradient` may be overwritten.

    float32 gradients are multiplied before the cast: a GradScaler's factor must not overflow float16.
    """
    if gradient.dtype == dtype:
        return gradient.mul_(factor)
    if gradient.device.type == "cpu" and gradient.dtype.itemsize > dtype.itemsize:
        return gradient.mul_(factor).to(dtype)  # torch.mul would make a temporary float32 copy
    return torch.mul(gradient, factor, out=torch.empty_like(gradient, dtype=dtype))


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _forward(hidden: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> tuple[Tensor, Tensor, Gradients]:
    h_all = hidden.to(spec.compute_dtype)
    w = weight.to(spec.compute_dtype)

    def label_logp() -> Tensor:
        return fused_label_logps(h_all, w, bias, spec.labels, spec.projection, spec.chunk)

    spec = replace(spec, side=spec.target.prepare(spec.side, spec.teacher, label_logp))
    grads = _allocate_gradients(hidden, weight, bias, spec)
    loss = hidden.new_zeros((), dtype=spec.stats_dtype)
    sums = hidden.new_zeros(len(SUM_NAMES), dtype=spec.stats_dtype)
    tile = hidden.new_empty((min(spec.chunk, len(hidden)), len(weight)), dtype=spec.tile_dtype)
    work = kernel_tile(spec, bias, tile) or TorchTile(spec, bias, tile)
    for start in range(0, len(hidden), spec.chunk):
        h = h_all[start : start + spec.chunk]
        z = write_product(h, w.t(), out=tile[: len(h)])
        for at in range(0, len(h), work.rows):
            block = z[at : at + work.rows]
            block_loss, block_sums = work.gradient_over_logits_(block, slice(start + at, start + at + len(block)))
            loss += block_loss
            sums += block_sums
        if any(spec.grad_of):
            _accumulate(grads, work.gradient(z), h, w, start)
    return loss, sums, grads


def _allocate_gradients(hidden: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> Gradients:
    """Memory for the gradients that are needed; the first chunk overwrites it."""
    # Without any token nothing is written, so that the gradients must be zeros.
    allocate = torch.empty_like if len(hidden) else torch.zeros_like
    of_hidden, of_weight, of_bias = spec.grad_of
    grad_hidden = allocate(hidden, dtype=spec.tile_dtype) if of_hidden else None
    one_chunk = len(hidden) <= spec.chunk
    weight_dtype = weight_gradient_dtype(weight.dtype, spec.compute_dtype, spec.tile_dtype, one_chunk=one_chunk)
    grad_weight = allocate(weight, dtype=weight_dtype) if of_weight else None
    grad_bias = allocate(bias, dtype=spec.stats_dtype) if of_bias and bias is not None else None
    return grad_hidden, grad_weight, grad_bias


class TorchTile:
    """What happens to a tile of products h·Wᵀ between the matmuls, in plain torch, for every target."""

    def __init__(self, spec: Spec, bias: Tensor | None, tile: Float[Tensor, "n V"]) -> None:
        self.spec = spec
        self.bias = bias
        self.rows = rows_per_block(tile.shape[-1], spec.stats_dtype, tile.device.type)
        self.probs = torch.empty_like(tile[: self.rows], dtype=spec.stats_dtype)
        self.wide_logits = None if tile.dtype == spec.stats_dtype else torch.empty_like(self.probs)

    def gradient_over_logits_(self, products: Float[Tensor, "n V"], rows: slice) -> tuple[Tensor, Tensor]:
        """The loss and the sums of these tokens; ∂loss/∂(h·Wᵀ) takes the place of their products: see `gradient`."""
        spec = self.spec
        z = products if self.wide_logits is None else self.wide_logits[: len(products)].copy_(products)
        p = self.probs[: len(z)]
        spec.projection.finish_(z, self.bias)
        top = z.max(dim=-1)
        torch.softmax(z, dim=-1, out=p)
        lse = top.values - p.gather(-1, top.indices[:, None])[:, 0].log()  # p_max = exp(z_max − lse)
        view = spec.view(rows, z, lse)
        q = spec.target(view)
        loss_and_sums = token_sums(view, q, lse - row_dots(p, z), top.indices)
        if any(spec.grad_of):
            self._write_gradient(q, p, z, products)
        return loss_and_sums

    def _write_gradient(self, q: Mixture, p: Tensor, z: Tensor, products: Float[Tensor, "n V"]) -> None:
        """∂loss/∂(h·Wᵀ) over `products`; `p` and the logits `z` are overwritten."""
        destination = self.gradient(products)
        softcap = self.spec.projection.softcap
        is_direct = softcap is None and destination.dtype == p.dtype  # else one block more is written and converted
        scale = q.scale * self.spec.projection.logit_scale
        grad = q.write_gradient(p, scale, out=destination if is_direct else p)
        if softcap is not None:
            grad.mul_(z.div_(softcap).square_().neg_().add_(1.0))
        if not is_direct:
            destination.copy_(grad)

    def gradient(self, z: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        """Where the gradient of the rows `z` is written: over them, in the dtype of the matmuls."""
        return in_place_as(z, self.spec.compute_dtype)


def _accumulate(grads: Gradients, grad: Float[Tensor, "n V"], h: Tensor, w: Tensor, start: int) -> None:
    grad_hidden, grad_weight, grad_bias = grads
    if grad_bias is not None:
        columns = grad.sum(dim=0, dtype=grad_bias.dtype)
        grad_bias.copy_(grad_bias + columns if start else columns)
    if grad_hidden is not None:
        write_product(grad, w, out=grad_hidden[start : start + len(h)])
    if grad_weight is not None:
        add_product(grad_weight, grad.t(), h, first=start == 0)
