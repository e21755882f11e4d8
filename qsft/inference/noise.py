"""Gumbel noise as a pure function of (sample, step, token), so that a batch cannot change a sample.

The Gumbel-max trick: argmax(logits + g) with standard Gumbel g is a draw from softmax(logits). The noise is hashed
from its coordinates by splitmix64 (Steele, Lea, Flood 2014); there is no generator whose state a batch could advance.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

# The constants of splitmix64 as signed 64-bit integers.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


def gumbel(keys: Int[Tensor, " B"], steps: Int[Tensor, " B"], vocabulary: int) -> Float[Tensor, "B V"]:
    """Standard Gumbel noise of each sample and token at the sample's step: g = −log(−log(1 − v)), v a uniform hash."""
    tokens = torch.arange(1, vocabulary + 1, device=keys.device)
    step_hash = _mix(keys + (steps + 1) * MIX_1)
    hashed = _mix(step_hash[:, None] + tokens * GOLDEN)
    # 31 bits, with full precision for small v: that is the tail where an unlikely token wins.
    uniform = ((hashed & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log(-torch.log1p(-uniform.clamp_(max=1 - 2.0**-24)))


def _mix(state: Int[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """splitmix64's finalizer; integer products wrap as in C."""
    state = (state ^ _shift_right(state, 30)) * MIX_1
    state = (state ^ _shift_right(state, 27)) * MIX_2
    return state ^ _shift_right(state, 31)


def _shift_right(state: Int[Tensor, "*N"], bits: int) -> Int[Tensor, "*N"]:
    """Logical shift to the right; torch's shift copies the sign bit."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
