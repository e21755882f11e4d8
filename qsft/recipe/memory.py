"""Bytes per GPU of a training step, part by part, for every way of spreading it over GPUs.

Weights, gradients and optimiser follow from the parameters' shapes alone and are exact for AdamW; activations come from
the rehearsal, the head from the fused head's own tile size. CUDA's context and fragmentation are not in it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from qsft.losses.matmuls import rows_per_block, tokens_per_chunk
from qsft.recipe.rehearsal import Parameter, Rehearsed

FP32 = torch.float32
STEP_COUNTER = 4  # AdamW keeps one float32 per parameter tensor
DEEPSPEED_BUCKET = 500_000_000  # its default reduce_bucket_size, in numbers
DEEPSPEED_LIVE = 1_000_000_000  # its default stage3_max_live_parameters


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU. Activations and head do not peak at the same moment, so the total is an upper bound."""

    weights: int
    gradients: int
    optimiser: int
    exchange: int  # what the strategy itself holds: gradient buckets, weights gathered for the time they are used
    activations: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        return sum(vars(self).values())


Strategy = Callable[[Rehearsed, int, torch.dtype | None], Memory]


def ddp(model: Rehearsed, gpus: int, mixed: torch.dtype | None) -> Memory:
    """Everything on every GPU; the reducer's buckets hold a second copy of the gradients."""
    gradients = sum(p.nbytes for p in _trained(model))
    return Memory(
        weights=sum(p.nbytes for p in model.parameters),
        gradients=gradients,
        optimiser=sum(2 * p.nbytes + STEP_COUNTER for p in _trained(model)),
        exchange=gradients if gpus > 1 else 0,
    )


def fsdp2(model: Rehearsed, gpus: int, mixed: torch.dtype | None) -> Memory:
    """Each parameter split along its first dimension; with mixed precision the shards that train are float32.

    Gathered in the compute dtype: everything outside the blocks, the block at work and the one fetched ahead, and the
    gradients of one block before they are spread again.
    """
    if gpus == 1:
        return ddp(model, 1, mixed)
    shards = [
        Parameter(_first_rows(p, gpus), FP32 if mixed and p.trainable else p.dtype, p.trainable)
        for p in model.parameters
    ]
    trained = [shard for shard in shards if shard.trainable]
    compute = (mixed or model.head.dtype).itemsize
    return Memory(
        weights=sum(s.nbytes for s in shards),
        gradients=sum(s.nbytes for s in trained),
        optimiser=sum(2 * s.nbytes + STEP_COUNTER for s in trained),
        exchange=(model.outside + 3 * model.block) * compute,
    )


def zero2(model: Rehearsed, gpus: int, mixed: torch.dtype | None) -> Memory:
    """Whole weights; one flat share of gradients, of float32 master weights and of AdamW's two moments."""
    width = (mixed or model.head.dtype).itemsize
    trained = sum(p.numel for p in _trained(model))
    share = _ceil(trained, gpus)
    return Memory(
        weights=sum(p.numel for p in model.parameters) * width,
        gradients=share * width,
        optimiser=share * 12,
        exchange=min(trained, DEEPSPEED_BUCKET) * width,
    )


def zero3(model: Rehearsed, gpus: int, mixed: torch.dtype | None) -> Memory:
    """One share of everything; weights are gathered for the time they are used, up to DeepSpeed's limit."""
    width = (mixed or model.head.dtype).itemsize
    shares = [(_ceil(p.numel, gpus), p.trainable) for p in model.parameters]
    trained = sum(share for share, trainable in shares if trainable)
    live = min(sum(p.numel for p in model.parameters), DEEPSPEED_LIVE)
    bucket = min(sum(p.numel for p in _trained(model)), DEEPSPEED_BUCKET)
    return Memory(
        weights=sum(share for share, _ in shares) * width,
        gradients=trained * width,
        optimiser=trained * 12,
        exchange=(live + bucket) * width if gpus > 1 else 0,
    )


STRATEGIES: dict[str, Strategy] = {"DDP": ddp, "FSDP2": fsdp2, "ZeRO-2": zero2, "ZeRO-3": zero3}


def head_bytes(head: Parameter, tokens: int, top_k: int, compute: torch.dtype, device: str = "cuda") -> int:
    """Peak of the fused head over `tokens` label positions with a cached top-k teacher, on a type of device.

    A float32 tile and the block it is worked on with, the float32 gradients of hidden states and weight, the teacher's
    rows; with bf16 matmuls a cast tile and one product more.
    """
    vocab, width = head.shape
    chunk = tokens_per_chunk(tokens, vocab, FP32, width if head.trainable else 0)
    block = min(chunk, rows_per_block(vocab, FP32, device))
    tile = (chunk + block) * vocab * FP32.itemsize
    gradients = (tokens + (vocab if head.trainable else 0)) * width * FP32.itemsize
    teacher = tokens * top_k * (8 + FP32.itemsize)
    cast = 0
    if compute != FP32:
        cast = (chunk * vocab + (vocab * width if head.trainable else 0)) * compute.itemsize
    return tile + gradients + teacher + cast


def _trained(model: Rehearsed) -> Iterable[Parameter]:
    return [p for p in model.parameters if p.trainable]


def _first_rows(parameter: Parameter, gpus: int) -> torch.Size:
    if not parameter.shape:
        return parameter.shape
    return torch.Size((_ceil(parameter.shape[0], gpus), *parameter.shape[1:]))


def _ceil(number: int, parts: int) -> int:
    return -(-number // parts)
