"""One fused head for every target: chunked linear + target + (p − Q), never the full logits.

Because the gradient of every target is scale·(p − Q), no method needs a kernel of its own. Per chunk of tokens:

    one matmul fills a tile of logits
    block by block: logits → p, TokenView → Q → value, then scale·(p − Q) written over the logits
    two matmuls read the tile, now a gradient

Matmuls want large tiles; everything else works on a small block, so only one tile exists. The gradients are computed
while it does: three matmuls in all, none repeated; two when the weight is frozen; one when no gradient is needed; one
more for targets whose scale depends on whole documents.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from qsft.losses.sums import SUM_NAMES, token_sums
from qsft.targets.induced import LossTarget
from qsft.targets.target import Mixture, Target
from qsft.targets.view import IGNORED, Full, SideInputs, TokenView, TopK, row_dots

TILE_BYTES = 512 * 2**20  # the tile of logits, some 880 tokens of a 150k vocabulary
# What becomes p at a time; dense targets take a few more of these. Small enough for a CPU's cache; large enough that a
# GPU is not kept waiting for the hundred small operations of a block.
CPU_BLOCK_BYTES, GPU_BLOCK_BYTES = 32 * 2**20, 256 * 2**20


@dataclass(frozen=True)
class Projection:
    """How hidden states become logits: (h·Wᵀ + bias)·logit_scale, then soft-capped."""

    softcap: float | None = None
    logit_scale: float = 1.0

    def __call__(self, h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Float[Tensor, "n V"]:
        """The logits of `h`, in the dtype of the tile `out`."""
        z = torch.mm(h, weight.t(), out=out) if h.dtype == out.dtype else out.copy_(torch.mm(h, weight.t()))
        if bias is not None:
            z += bias
        if self.logit_scale != 1.0:
            z *= self.logit_scale
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z


@dataclass(frozen=True)
class Spec:
    """Everything the fused function needs beside the three differentiable tensors."""

    labels: Int[Tensor, " N"]
    target: Target | LossTarget
    teacher: TopK | Full | None
    side: SideInputs
    projection: Projection
    chunk: int
    compute: torch.dtype  # of the matmuls
    stats: torch.dtype  # of the tile, the statistics and the stored gradients
    grad_of: tuple[bool, bool, bool]  # hidden, weight, bias


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
    labels: Int[Tensor, " N"],
    target: Target | LossTarget,
    teacher: TopK | Full | None = None,
    *,
    side: SideInputs | None = None,
    bias: Float[Tensor, " V"] | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    chunk: int | None = None,
) -> FusedOutput:
    """Σ over label tokens of scale·CE(Q, p) for logits hidden·weightᵀ, equal to `target_loss`, without those logits.

    Labels of −100 are left out. `chunk` tokens are projected at a time; by default as many as fit TILE_BYTES.

    >>> from qsft.targets.zoo import make_target
    >>> out = fused_target_loss(torch.zeros(2, 3), torch.zeros(4, 3), torch.tensor([1, 0]), make_target("sft"))
    >>> round(out.loss.item(), 4)   # 2·ln 4
    2.7726
    """
    keep = labels != IGNORED
    if not bool(keep.all()):
        hidden, labels = hidden[keep], labels[keep]
        teacher = None if teacher is None else teacher[keep]
        side = None if side is None else side[keep]
    _check(weight, labels, teacher)
    stats = torch.promote_types(torch.float32, hidden.dtype)
    enabled = torch.is_grad_enabled()
    spec = Spec(
        labels=labels,
        target=target,
        teacher=None if teacher is None else teacher.to(hidden.device, stats).within(weight.shape[0]),
        side=side or SideInputs(),
        projection=Projection(softcap, logit_scale),
        chunk=chunk or tokens_per_chunk(labels.numel(), weight.shape[0], stats),
        compute=_compute_dtype(hidden, weight),
        stats=stats,
        # Inside a Function grad mode is always off and needs_input_grad ignores no_grad, so it is decided out here.
        grad_of=tuple(enabled and t is not None and t.requires_grad for t in (hidden, weight, bias)),  # type: ignore[arg-type]
    )
    loss, sums = _FusedTargetLoss.apply(hidden, weight, bias, spec)
    return FusedOutput(loss, sums)


def fused_label_logps(
    hidden: Float[Tensor, "N H"],
    weight: Float[Tensor, "V H"],
    labels: Int[Tensor, " N"],
    *,
    bias: Float[Tensor, " V"] | None = None,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    chunk: int | None = None,
) -> Float[Tensor, " N"]:
    """log p_y of every label, without gradient and without full logits: one matmul in chunks."""
    _check(weight, labels, None)
    stats = torch.promote_types(torch.float32, hidden.dtype)
    chunk = chunk or tokens_per_chunk(labels.numel(), weight.shape[0], stats)
    compute = _compute_dtype(hidden, weight)
    projection = Projection(softcap, logit_scale)
    with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
        return _label_logps(hidden.to(compute), weight.to(compute), bias, labels, projection, chunk, stats)


def tokens_per_chunk(tokens: int, vocab_size: int, dtype: torch.dtype) -> int:
    """How many tokens to project at a time: as many as fit TILE_BYTES, in chunks of equal size."""
    chunks = -(-tokens // _rows_within(TILE_BYTES, vocab_size, dtype))
    return max(1, -(-tokens // max(1, chunks)))


def rows_per_block(vocab_size: int, dtype: torch.dtype, device: str) -> int:
    """How many rows of a tile to turn into gradients at a time on this type of device."""
    return _rows_within(CPU_BLOCK_BYTES if device == "cpu" else GPU_BLOCK_BYTES, vocab_size, dtype)


def _rows_within(size: int, vocab_size: int, dtype: torch.dtype) -> int:
    return max(1, size // (vocab_size * dtype.itemsize))


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
        # Multiplied in float32 before the cast: a GradScaler's factor must not overflow float16 on the way.
        return (*(None if g is None else g.mul_(grad_loss).to(d) for g, d in zip(gradients, ctx.dtypes)), None)


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _forward(hidden: Tensor, weight: Tensor, bias: Tensor | None, spec: Spec) -> tuple[Tensor, Tensor, Gradients]:
    h_all, w = hidden.to(spec.compute), weight.to(spec.compute)
    side = spec.side.map(lambda value: value.to(hidden.device))
    scores = (h_all, w, bias, spec.labels, spec.projection, spec.chunk, spec.stats)
    side = spec.target.prepare(side, spec.teacher, lambda: _label_logps(*scores))
    # Every row is written by the chunks below, the first of which overwrites; without any chunk they must be zeros.
    allocate = torch.empty_like if len(hidden) else torch.zeros_like
    grads: Gradients = tuple(  # type: ignore[assignment]
        allocate(t, dtype=spec.stats) if t is not None and wanted else None
        for t, wanted in zip((hidden, weight, bias), spec.grad_of)
    )
    loss = hidden.new_zeros((), dtype=spec.stats)
    sums = hidden.new_zeros(len(SUM_NAMES), dtype=spec.stats)
    tile = hidden.new_empty((min(spec.chunk, len(hidden)), len(weight)), dtype=spec.stats)
    scratch = torch.empty_like(tile[: rows_per_block(len(weight), spec.stats, hidden.device.type)])
    for start in range(0, len(hidden), spec.chunk):
        h = h_all[start : start + spec.chunk]
        z = spec.projection(h, w, bias, out=tile[: len(h)])
        for at, block in zip(range(start, start + len(h), len(scratch)), z.split(len(scratch))):
            rows = slice(at, at + len(block))
            block_loss, block_sums = _gradient_over_logits_(block, scratch[: len(block)], side[rows], rows, spec)
            loss += block_loss
            sums += block_sums
        if any(spec.grad_of):
            _accumulate(grads, z, h, w, start, spec.compute)
    return loss, sums, grads


def _gradient_over_logits_(
    z: Float[Tensor, "n V"], p: Float[Tensor, "n V"], side: SideInputs, rows: slice, spec: Spec
) -> tuple[Tensor, Tensor]:
    """The loss and the sums of these rows; ∂loss/∂(h·Wᵀ) takes the place of their logits, `p` is room to work in."""
    top = z.max(dim=-1)
    torch.softmax(z, dim=-1, out=p)
    lse = top.values - p.gather(-1, top.indices[:, None])[:, 0].log()  # p_max = exp(z_max − lse)
    view = TokenView(z, spec.labels[rows], lse, None if spec.teacher is None else spec.teacher[rows], side)
    q = spec.target(view)
    loss_and_sums = token_sums(view, q, lse - row_dots(p, z), top.indices)
    if any(spec.grad_of):
        _write_gradient_(z, p, q, spec.projection)
    return loss_and_sums


def _write_gradient_(z: Float[Tensor, "n V"], p: Float[Tensor, "n V"], q: Mixture, projection: Projection) -> None:
    """scale·(p − Q)·∂z/∂(h·Wᵀ) written over z; p is overwritten too where the projection is soft-capped."""
    scale = q.scale * projection.logit_scale
    student = torch.zeros_like(scale)
    for mass, dist in q.terms:
        student += mass * (1.0 - dist.student_share())
    grad = torch.mul(p, (scale * student)[:, None], out=z if projection.softcap is None else p)
    for mass, dist in q.terms:
        dist.subtract_(grad, scale * mass)
    if projection.softcap is not None:
        z.div_(projection.softcap).square_().neg_().add_(1.0).mul_(grad)


def _accumulate(grads: Gradients, grad: Tensor, h: Tensor, w: Tensor, start: int, compute: torch.dtype) -> None:
    grad_hidden, grad_weight, grad_bias = grads
    rows = slice(start, start + len(h))
    keep = 0.0 if start == 0 else 1.0  # of what the weight's and bias's gradients hold; 0 also drops NaN
    if grad_bias is not None:
        columns = grad.sum(dim=0)
        grad_bias.copy_(grad_bias + columns if keep else columns)
    exact = grad.dtype == compute
    grad = grad.to(compute)
    if grad_hidden is not None:
        if exact:
            torch.mm(grad, w, out=grad_hidden[rows])
        else:
            grad_hidden[rows] = torch.mm(grad, w)
    if grad_weight is not None:
        if exact:
            grad_weight.addmm_(grad.t(), h, beta=keep)
        elif keep:
            grad_weight += torch.mm(grad.t(), h)
        else:
            grad_weight.copy_(torch.mm(grad.t(), h))


def _label_logps(
    h: Tensor, w: Tensor, bias: Tensor | None, labels: Tensor, projection: Projection, chunk: int, stats: torch.dtype
) -> Float[Tensor, " N"]:
    tile = h.new_empty((min(chunk, len(h)), len(w)), dtype=stats)
    size = rows_per_block(len(w), stats, h.device.type)
    logps = [h.new_empty(0, dtype=stats)]
    for h_chunk, y in zip(h.split(chunk), labels.split(chunk)):
        z = projection(h_chunk, w, bias, out=tile[: len(h_chunk)])
        logps += [TokenView.of(*block).label_logp for block in zip(z.split(size), y.split(size))]
    return torch.cat(logps)


def _compute_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    """What F.linear would compute in: the autocast dtype when it is on, else the wider of the two."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return torch.promote_types(hidden.dtype, weight.dtype)


def _check(weight: Tensor, labels: Tensor, teacher: TopK | Full | None) -> None:
    vocab_size = weight.shape[0]
    bad = (labels < 0) | (labels >= vocab_size)
    if bool(bad.any()):
        where = int(bad.nonzero()[0])
        raise ValueError(
            f"label {int(labels[where])} at label position {where} is outside the head's {vocab_size} rows. "
            "Another tokenizer made the data, or the embedding was not resized; −100 marks ignored tokens."
        )
    if isinstance(teacher, TopK) and teacher.ids.shape[-1] > vocab_size:
        raise ValueError(
            f"the teacher gives {teacher.ids.shape[-1]} tokens per position, but the vocabulary has only {vocab_size}. "
            "Ask for a smaller top-k."
        )
