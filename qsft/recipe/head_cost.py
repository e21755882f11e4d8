"""How long the head takes on a GPU, and what it holds: a model of matmuls and passes over memory, not a measurement.

Assumed: matmuls run at 70 % of the peak bf16 rate, everything else moves its bytes at 80 % of the peak bandwidth, and
the two do not overlap. What is counted is what losses/fused.py, slots.py and kernels.py do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from qsft.losses.matmuls import rows_per_block, tokens_per_chunk

MATMUL_SHARE, BANDWIDTH_SHARE = 0.70, 0.80
WIDE, NARROW = 4, 2  # bytes of float32 and bf16


@dataclass(frozen=True)
class Gpu:
    """Peak dense bf16 rate in FLOP/s and memory bandwidth in bytes/s, as its maker states them."""

    name: str
    flops: float
    bandwidth: float


GPUS = (Gpu("A100", 312e12, 2.04e12), Gpu("H100", 989e12, 3.35e12), Gpu("B200", 2250e12, 8.0e12))

# Forward and backward at N=8192, H=4096, V=151,936 in bf16 on an H100, as others have published them: ms, GiB.
PUBLISHED_SHAPE = (8192, 4096, 151_936)
PUBLISHED_MATMULS = (42.0, 45.0)
PUBLISHED = {"naive": (59, 19.9), "Liger": (192, 6.1), "TRL": (167, 13.1)}


@dataclass(frozen=True)
class HeadCost:
    """Seconds in the three matmuls, seconds in all other passes over memory, and the peak in bytes."""

    matmuls: float
    passes: float
    peak: int


def head_cost(tokens: int, hidden: int, vocabulary: int, gpu: Gpu, *, kernels: bool = True) -> HeadCost:
    """The head's forward and backward over `tokens` label positions in bf16, with a trained weight."""
    chunk = tokens_per_chunk(tokens, vocabulary, torch.float32, hidden)
    chunks = -(-tokens // chunk)
    tile, weight = tokens * vocabulary, vocabulary * hidden
    logits = WIDE - NARROW  # a matmul that writes float32 instead of bf16
    if kernels:
        between = WIDE + (WIDE + NARROW)  # statistics read; the gradient reads and writes
    else:  # max, softmax, Σ p·z, scale·p, cast to bf16
        between = WIDE + 2 * WIDE + 2 * WIDE + 2 * WIDE + (WIDE + NARROW)
    gradient = (2 * chunks - 1) * WIDE + (WIDE + NARROW)  # accumulated, then scaled and cast by the backward
    moved = tile * (logits + between) + weight * gradient
    block = 0 if kernels else min(chunk, rows_per_block(vocabulary, torch.float32, "cuda"))
    cast = 0 if kernels else chunk * vocabulary * NARROW
    peak = (chunk + block) * vocabulary * WIDE + cast + (weight + tokens * hidden) * WIDE + weight * NARROW
    return HeadCost(6.0 * tile * hidden / (gpu.flops * MATMUL_SHARE), moved / (gpu.bandwidth * BANDWIDTH_SHARE), peak)


def head_lines(tokens: int, hidden: int, vocabulary: int) -> Iterator[tuple[str, str]]:
    """The head of one micro-batch on each GPU, and the model beside what others have published for one shape."""
    for gpu in GPUS:
        cost = head_cost(tokens, hidden, vocabulary, gpu)
        yield f"head on {gpu.name}", f"{_milliseconds(cost)} for {tokens:,} label tokens, {cost.peak / 2**30:.1f} GiB"
    h100 = next(gpu for gpu in GPUS if gpu.name == "H100")
    ours = head_cost(*PUBLISHED_SHAPE, h100)
    others = ", ".join(f"{name} {ms} ms / {gib} GiB" for name, (ms, gib) in PUBLISHED.items())
    yield (
        "",
        (
            f"a model, not a measurement: matmuls at {MATMUL_SHARE:.0%} and bandwidth at {BANDWIDTH_SHARE:.0%} of the "
            f"peak, bf16, Triton kernels. At N=8192, H=4096, V=151,936 on an H100 it says {_milliseconds(ours)}, "
            f"{ours.peak / 2**30:.1f} GiB; published there: the three matmuls {PUBLISHED_MATMULS[0]:.0f}–"
            f"{PUBLISHED_MATMULS[1]:.0f} ms, {others}"
        ),
    )


def _milliseconds(cost: HeadCost) -> str:
    return f"{1e3 * (cost.matmuls + cost.passes):.1f} ms ({1e3 * cost.matmuls:.1f} in matmuls)"
