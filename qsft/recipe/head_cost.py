"""How long the head takes on a GPU, and what it holds: a model of matmuls and passes over memory, not a measurement.

Assumed: matmuls run at 70 % of the peak bf16 rate, everything else moves its bytes at 80 % of the peak bandwidth, and
the two do not overlap. What is counted is what losses/fused.py, slots.py and kernels.py move beyond three matmuls that
write bf16. With the kernels, per element of

    the tile     2 logits kept in float32 + 4 statistics read them + 4 + 2 the gradient reads them and writes bf16
    the weight   8 per chunk but the first: its gradient is accumulated in float32, read and written
                 2 + 4 + 2 once: it is kept in float32, which the backward reads, scales and writes as bf16

Nothing of this can go as long as logits and the sum over chunks are float32 and the scale is known to the backward
only. Fewer chunks would: one instead of two saves 1.9 of 9.4 ms in the published shape, for another 2.3 GiB. Not
counted are the target's own operations between the kernels: some 180 of a few microseconds per chunk, on [n, K+1].
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from qsft.losses.matmuls import rows_per_block, tokens_per_chunk

MATMUL_SHARE, BANDWIDTH_SHARE = 0.70, 0.80
WIDE, NARROW = 4, 2  # bytes of float32 and bf16

# Peak dense bf16 rate in FLOP/s and memory bandwidth in bytes/s, as their makers state them.
GPUS = {"A100": (312e12, 2.04e12), "H100": (989e12, 3.35e12), "B200": (2250e12, 8.0e12)}

# Forward and backward at N=8192, H=4096, V=151,936 in bf16 on an H100, as others have published them: ms, GiB.
PUBLISHED_SHAPE = (8192, 4096, 151_936)
PUBLISHED_MATMULS = (42.0, 45.0)
PUBLISHED = {"naive": (59, 19.9), "Liger": (192, 6.1), "TRL": (167, 13.1)}


class HeadCost(NamedTuple):
    """Seconds in the three matmuls, seconds in all other passes over memory, and the peak in bytes."""

    matmuls: float
    passes: float
    peak: int

    def __str__(self) -> str:
        matmuls, passes = 1e3 * self.matmuls, 1e3 * self.passes
        return f"{matmuls + passes:.1f} ms ({matmuls:.1f} in matmuls, {passes:.1f} in passes over memory)"


def head_bytes(
    tokens: int,
    hidden: int,
    vocabulary: int,
    *,
    trained: bool = True,
    top_k: int = 0,
    compute: torch.dtype = torch.bfloat16,
    device: str = "cuda",
    kernels: bool = False,
) -> int:
    """Peak of the fused head over `tokens` label positions with a cached top-k teacher, on a type of device.

    A float32 tile and the block it is worked on with, the float32 gradients of hidden states and weight, the teacher's
    rows; with bf16 matmuls a cast tile, and on a CPU, whose products are bf16, one product more. Kernels need neither
    block nor cast tile. When the backward casts the gradients the tile is gone.
    """
    chunk = tokens_per_chunk(tokens, vocabulary, torch.float32, hidden if trained else 0)
    block = 0 if kernels else min(chunk, rows_per_block(vocabulary, torch.float32, device))
    weight = vocabulary * hidden if trained else 0
    narrow = 0 if kernels or compute == torch.float32 else chunk * vocabulary + (weight if device == "cpu" else 0)
    teacher = tokens * top_k * (8 + WIDE)
    return ((chunk + block) * vocabulary + tokens * hidden + weight) * WIDE + narrow * compute.itemsize + teacher


def head_cost(tokens: int, hidden: int, vocabulary: int, gpu: str, *, kernels: bool = True) -> HeadCost:
    """The head's forward and backward over `tokens` label positions in bf16, with a trained weight."""
    flops, bandwidth = GPUS[gpu]
    chunks = -(-tokens // tokens_per_chunk(tokens, vocabulary, torch.float32, hidden))
    tile, weight = tokens * vocabulary, vocabulary * hidden
    wider = WIDE - NARROW  # a matmul that writes float32 instead of bf16
    if kernels:
        between = WIDE + (WIDE + NARROW)  # statistics read; the gradient reads and writes
    else:  # max, softmax, Σ p·z, scale·p, cast to bf16
        between = WIDE + 2 * WIDE + 2 * WIDE + 2 * WIDE + (WIDE + NARROW)
    once = wider + (WIDE + NARROW)  # a gradient kept in float32, then scaled and cast by the backward
    moved = tile * (wider + between) + weight * (2 * (chunks - 1) * WIDE + once) + tokens * hidden * once
    peak = head_bytes(tokens, hidden, vocabulary, kernels=kernels)
    return HeadCost(6.0 * tile * hidden / (flops * MATMUL_SHARE), moved / (bandwidth * BANDWIDTH_SHARE), peak)


def head_lines(tokens: int, hidden: int, vocabulary: int) -> Iterator[tuple[str, str]]:
    """The head of one micro-batch on each GPU, and the model beside what others have published for one shape."""
    for gpu in GPUS:
        cost = head_cost(tokens, hidden, vocabulary, gpu)
        yield f"head on {gpu}", f"{cost} for {tokens:,} label tokens, {cost.peak / 2**30:.1f} GiB"
    ours = head_cost(*PUBLISHED_SHAPE, "H100")
    others = ", ".join(f"{name} {ms} ms / {gib} GiB" for name, (ms, gib) in PUBLISHED.items())
    about = (
        f"a model, not a measurement: matmuls at {MATMUL_SHARE:.0%} and bandwidth at {BANDWIDTH_SHARE:.0%} of the "
        f"peak, bf16, Triton kernels. At N=8192, H=4096, V=151,936 on an H100 it says {ours}, "
        f"{ours.peak / 2**30:.1f} GiB; published there: the three matmuls {PUBLISHED_MATMULS[0]:.0f}–"
        f"{PUBLISHED_MATMULS[1]:.0f} ms, {others}"
    )
    yield "", about
