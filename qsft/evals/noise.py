"""Random numbers that are a function of what they are for, so batching, processes and resuming do not change them.

A sample's next token is argmax(logits + g) with g a Gumbel variable hashed from (seed, problem, sample, step, token):
the Gumbel-max trick draws from softmax(logits), and no generator's state exists that a batch could advance.
"""

from hashlib import blake2b

import torch
from jaxtyping import Float, Int
from torch import Tensor

# splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit integers
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


def row_key(seed: int, problem: str, sample: int) -> int:
    """64 bits that stand for one sample, as a signed integer."""
    digest = blake2b(f"{seed}\0{problem}\0{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def gumbel(keys: Int[Tensor, " B"], steps: Int[Tensor, " B"], vocabulary: int) -> Float[Tensor, "B V"]:
    """Standard Gumbel noise of every row and token at the row's step: g = −log(−log(1 − v)), v uniform by the hash."""
    tokens = torch.arange(1, vocabulary + 1, device=keys.device)
    moment = _mix(keys + (steps + 1) * MIX_1)
    hashed = _mix(moment[:, None] + tokens * GOLDEN)
    # 31 bits, small v with full precision: that is the tail where an unlikely token wins.
    uniform = ((hashed & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log(-torch.log1p(-uniform.clamp_(max=1 - 2.0**-24)))


def _mix(state: Int[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """splitmix64's finaliser; integer products wrap as in C."""
    state = (state ^ _shift(state, 30)) * MIX_1
    state = (state ^ _shift(state, 27)) * MIX_2
    return state ^ _shift(state, 31)


def _shift(state: Int[Tensor, "*N"], bits: int) -> Int[Tensor, "*N"]:
    """Logical shift to the right; torch shifts the sign in."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
