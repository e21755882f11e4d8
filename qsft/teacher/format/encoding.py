"""How the teacher's log-probs of one document become bytes, and back: the encodings `exact` and `compact`.

A payload starts with three columns, one value per label position: the number of slots, the label's log-prob and the log
of the mass outside the slots (both fp16; rounded log-probs do not give a small tail back). Positions may have different
numbers of slots; nothing is padded on disk. Token ids take ⌈log2 V⌉ bits each. At k = 64 and a vocabulary of 151,936:

    exact     log-probs in fp16                                                           277 bytes per label position
    compact   the first 12 in 16 bits, the others as 8-bit differences to the one before   227 bytes per label position

docs/cache_format.md describes both byte by byte.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from qsft.targets.view import TopK

LOWEST = -65504.0  # the smallest finite fp16: a log-prob below it is stored as this and remains a slot
FIRST_SLOTS = 12  # slots per position that `compact` stores in 16 bits: ten digits may be about equally likely
CODE_SHIFT = 12  # of float32's 23 mantissa bits `_to_codes` keeps 11
CODE_OF_ZERO = (127 - 15) << 11  # and exponents from −15 on
LARGEST_DIFFERENCE = 255  # in steps, between neighboring slots of `compact`
# Limits on the cells (positions × k) that a decoder allocates: in all, and per byte above a harmless number of cells.
MOST_CELLS = 1 << 28
HARMLESS_CELLS = 1 << 24
CELLS_PER_BYTE = 8192


class TopKArrays(NamedTuple):
    """The teacher's log-probs at n label positions, as numpy arrays.

    ids          [n, k]
    logps        [n, k], −inf for an empty slot
    label_logp   [n], the label's log-prob, whether it is among the slots or not
    log_tail     [n], the log of the mass outside the slots
    """

    ids: np.ndarray
    logps: np.ndarray
    label_logp: np.ndarray
    log_tail: np.ndarray

    @classmethod
    def concatenate(cls, parts: list[TopK]) -> "TopKArrays":
        """The log-probs of several tensors on any device, one part after the other."""
        columns = zip(*((part.ids, part.logps, part.label_logp, part.log_tail) for part in parts))
        return cls(*(torch.cat(column).cpu().numpy() for column in columns))  # type: ignore[arg-type]

    def at(self, positions: slice | np.ndarray) -> "TopKArrays":
        """The log-probs at some of the positions."""
        return TopKArrays(*(column[positions] for column in self))


def canonical(log_probs: TopKArrays) -> TopKArrays:
    """The same log-probs, likeliest slot first, empty slots last, in fp16's range and at most 0.

    Raises:
        ValueError: if a value is NaN.
    """
    ids, logps, label_logp, log_tail = log_probs
    if any(np.isnan(column).any() for column in (logps, label_logp, log_tail)):
        raise ValueError(
            "the teacher returned NaN for a document, so nothing of this batch was stored; what was published stays. "
            "Its weights may be damaged, or its dtype too narrow: try `dtype='float32'` or 'bfloat16'."
        )
    logps = _storable(logps.astype(np.float32, copy=False))
    if (logps[:, 1:] > logps[:, :-1]).any():
        order = np.argsort(-logps, axis=1, kind="stable")
        ids = np.take_along_axis(ids, order, 1)
        logps = np.take_along_axis(logps, order, 1)
    return TopKArrays(ids, logps, _storable(label_logp), _storable(log_tail))


def truncate(log_probs: TopKArrays, top_p: float | None, min_k: int) -> TopKArrays:
    """Keep the fewest slots of a position that hold `top_p` of the mass, at least `min_k`; the rest joins the tail."""
    if top_p is None:
        return log_probs
    mass = np.exp(log_probs.logps.astype(np.float64))
    keep = (np.cumsum(mass, axis=1) - mass < top_p) | (np.arange(mass.shape[1]) < min_k)
    removed = np.where(keep, 0.0, mass).sum(axis=1)
    with np.errstate(divide="ignore"):
        log_tail = np.log(np.exp(log_probs.log_tail.astype(np.float64)) + removed)
    return log_probs._replace(logps=np.where(keep, log_probs.logps, -np.inf), log_tail=log_tail)


@dataclass(frozen=True)
class Codec(ABC):
    """Bytes from log-probs and log-probs from bytes; a subclass decides how the log-probs of the slots are stored."""

    k: int
    vocab_size: int

    def encode(self, log_probs: TopKArrays) -> bytes:
        """The payload of one document."""
        log_probs = canonical(log_probs)
        live = log_probs.logps > -np.inf
        columns = [
            live.sum(axis=1).astype(self._count_type),
            log_probs.label_logp.astype("<f2"),
            log_probs.log_tail.astype("<f2"),
            *_split_bits(log_probs.ids[live], self._id_bits),
            *self._encode_slots(log_probs.logps, live),
        ]
        return b"".join(column.tobytes() for column in columns)

    def decode(self, payload: np.ndarray, positions: int) -> TopKArrays:
        """The log-probs of `positions` label positions from a payload (uint8), padded to k slots.

        Raises:
            ValueError: if the bytes cannot be such a payload.
        """
        if self.is_implausible(positions, len(payload)):
            raise ValueError(f"{len(payload)} bytes claim {positions} label positions of k={self.k} slots")
        reader = _ColumnReader(payload)
        counts = reader.take(self._count_type, positions)
        label_logp = reader.take("<f2", positions)
        log_tail = reader.take("<f2", positions)
        if positions and int(counts.max()) > self.k:
            raise ValueError(f"a label position claims {int(counts.max())} slots, the cache has k={self.k}")
        all_full = positions > 0 and int(counts.min()) == self.k
        live = None if all_full else np.arange(self.k) < counts[:, None]
        slots = positions * self.k if live is None else int(live.sum())
        ids = _join_bits(reader, slots, self._id_bits)
        logps = self._decode_slots(reader, positions, live)
        if len(reader.remaining):
            raise ValueError("a document has more bytes than its label positions need")
        if ids.size and int(ids.view("<u4").max()) >= self.vocab_size:  # unsigned: a negative id is beyond it too
            raise ValueError(f"a slot holds an id outside the vocabulary of {self.vocab_size}")
        if not _are_logps(label_logp) or not _are_logps(log_tail):
            raise ValueError("a label position holds a log-prob above 0 or NaN")
        return TopKArrays(_pad(ids, live, self.k), logps, label_logp, log_tail)

    def is_implausible(self, positions: Any, size: Any) -> Any:
        """Whether `size` bytes that claim so many positions would make a reader allocate far more than they hold.

        Takes numbers or arrays of them.
        """
        cells = positions * self.k
        return (cells > MOST_CELLS) | ((cells > HARMLESS_CELLS) & (cells > CELLS_PER_BYTE * size))

    @property
    @abstractmethod
    def logps_dtype(self) -> type[np.floating]:
        """The type of decoded log-probs."""

    @property
    def _count_type(self) -> str:
        return "u1" if self.k < 256 else "<u2"

    @property
    def _id_bits(self) -> int:
        return max(1, (self.vocab_size - 1).bit_length())

    @abstractmethod
    def _encode_slots(self, logps: np.ndarray, live: np.ndarray) -> list[np.ndarray]:
        """The columns that hold the log-probs [n, k] of the `live` slots."""

    @abstractmethod
    def _decode_slots(self, reader: "_ColumnReader", positions: int, live: np.ndarray | None) -> np.ndarray:
        """The log-probs [n, k] from those columns, −inf where not `live`; None means that every slot is."""


class Exact(Codec):
    """Log-probs in fp16."""

    logps_dtype = np.float16

    def _encode_slots(self, logps: np.ndarray, live: np.ndarray) -> list[np.ndarray]:
        return [logps[live].astype("<f2")]

    def _decode_slots(self, reader: "_ColumnReader", positions: int, live: np.ndarray | None) -> np.ndarray:
        flat = reader.take("<f2", positions * self.k if live is None else int(live.sum()))
        if not _are_logps(flat):
            raise ValueError("a slot holds a log-prob above 0 or NaN")
        return _pad(flat, live, self.k, -np.inf)


class Compact(Codec):
    """The first slots of a position in 16 bits, the others as 8-bit differences to the slot before.

    The 16 bits hold no sign, so that they resolve log-probs twice as finely as fp16 (`_to_codes`). Slots are sorted, so
    neighbors beyond the first few lie close together: 255 steps up to the largest difference of a position resolve them
    more finely than fp16 does. Decoded log-probs are float32: rounding them to fp16 would add more error than the
    encoding makes.
    """

    logps_dtype = np.float32

    def _encode_slots(self, logps: np.ndarray, live: np.ndarray) -> list[np.ndarray]:
        first_live = live[:, :FIRST_SLOTS]
        rest = logps[:, FIRST_SLOTS:]
        rest_live = live[:, FIRST_SLOTS:]
        codes = _to_codes(logps[:, :FIRST_SLOTS])
        # Differences are taken from what a reader will decode, so that rounding errors do not add up.
        start = np.where(rest_live.any(axis=1), _from_codes(codes[:, -1]), 0.0)[:, None]
        below_start = np.where(rest_live, start - np.where(rest_live, rest, 0.0), 0.0)
        below_start = np.maximum(below_start, 0.0)  # rounding may have moved the start below the slots after it
        largest = np.diff(below_start, axis=1, prepend=0.0).max(axis=1, initial=0.0)
        step = _half_above(largest / (LARGEST_DIFFERENCE - 1))  # one step is left for the rounding of both ends
        steps_below = np.rint(below_start / np.where(step > 0, step, 1.0)[:, None])
        steps_below = np.maximum.accumulate(steps_below, axis=1)
        differences = np.diff(steps_below, axis=1, prepend=0.0)
        return [codes[first_live], step.astype("<f2"), differences[rest_live].astype(np.uint8)]

    def _decode_slots(self, reader: "_ColumnReader", positions: int, live: np.ndarray | None) -> np.ndarray:
        first_size = min(FIRST_SLOTS, self.k)
        rest_size = self.k - first_size
        first_live = None if live is None else live[:, :first_size]
        rest_live = None if live is None else live[:, first_size:]
        codes = reader.take("<u2", positions * first_size if first_live is None else int(first_live.sum()))
        step_halves = reader.take("<f2", positions)
        differences = reader.take("u1", positions * rest_size if rest_live is None else int(rest_live.sum()))
        if not _are_steps(step_halves):
            raise ValueError("a label position holds a negative or infinite step")
        logps = np.empty((positions, self.k), np.float32)
        logps[:, :first_size] = _pad(_from_codes(codes), first_live, first_size, -np.inf)
        if rest_size:
            step = step_halves.astype(np.float32)
            steps_below = np.cumsum(_pad(differences, rest_live, rest_size), axis=1, dtype=np.int32)
            rest = logps[:, first_size:]
            np.multiply(steps_below, -step[:, None], out=rest)
            rest += logps[:, first_size - 1 : first_size]
            if positions and float(rest[:, -1].min()) < LOWEST:  # rounding went below the lowest log-prob
                np.maximum(rest, LOWEST, out=rest)
            if rest_live is not None:
                rest[~rest_live] = -np.inf
        return logps


ENCODINGS: dict[str, type[Codec]] = {"exact": Exact, "compact": Compact}


def bytes_per_label_token(encoding: str, k: int, vocab_size: int) -> float:
    """Bytes per label position of `encoding` with k slots each, to estimate the disk needed."""
    count_bytes = 1 if k < 256 else 2
    label_and_tail_bytes = 4
    id_bytes = k * max(1, (vocab_size - 1).bit_length()) / 8
    if encoding == "exact":
        logp_bytes = 2 * k
    else:
        first_slots = min(FIRST_SLOTS, k)
        step_bytes = 2
        logp_bytes = 2 * first_slots + step_bytes + (k - first_slots)
    return count_bytes + label_and_tail_bytes + id_bytes + logp_bytes


def _storable(logps: np.ndarray) -> np.ndarray:
    """Log-probs at most 0 and within fp16's range; −inf stays."""
    return np.where(logps == -np.inf, -np.inf, np.clip(logps, LOWEST, 0.0))


def _half_above(x: np.ndarray) -> np.ndarray:
    """The smallest fp16 value that is not below x, as float32."""
    half = x.astype(np.float16)
    above = np.nextafter(half, np.float16(np.inf))
    return np.where(half.astype(np.float32) < x, above, half).astype(np.float32)


def _to_codes(logps: np.ndarray) -> np.ndarray:
    """Log-probs ≤ 0 as 16 bits, nearest: −2^(e−15)·(1 + m/2048) is e·2048 + m, and 0 is 0."""
    bits = np.abs(logps).astype(np.float32).view(np.int32)
    rounded = (bits + (1 << (CODE_SHIFT - 1))) >> CODE_SHIFT
    return np.clip(rounded - CODE_OF_ZERO, 0, 2**16 - 1).astype("<u2")


def _from_codes(codes: np.ndarray) -> np.ndarray:
    """The log-probs of `_to_codes`, as float32."""
    bits = codes.astype(np.int32)
    bits += CODE_OF_ZERO
    bits <<= CODE_SHIFT
    logps = bits.view(np.float32)
    np.negative(logps, out=logps)
    logps[codes == 0] = 0.0
    return logps


def _pad(flat: np.ndarray, live: np.ndarray | None, width: int, empty: float = 0) -> np.ndarray:
    """The flat slots as [n, width], `empty` where not `live`; None means that every slot is."""
    if live is None:
        return flat.reshape(-1, width)
    padded = np.full(live.shape, empty, flat.dtype)
    padded[live] = flat
    return padded


# ---- token ids in ⌈log2 V⌉ bits ----


def _split_bits(ids: np.ndarray, bits: int) -> list[np.ndarray]:
    """Two planes: the complete low bytes of every id, and its remaining high bits packed."""
    low_bytes, high_bits = divmod(bits, 8)
    planes = [np.ascontiguousarray(ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :low_bytes])]
    if high_bits:
        high = ids.astype(np.uint32) >> (8 * low_bytes)
        single_bits = (high[:, None] >> np.arange(high_bits, dtype=np.uint32)) & 1
        planes.append(np.packbits(single_bits.astype(np.uint8)))
    return planes


def _join_bits(reader: "_ColumnReader", count: int, bits: int) -> np.ndarray:
    """The ids that `_split_bits` took apart, as int32."""
    low_bytes, high_bits = divmod(bits, 8)
    low_plane = reader.take("u1", count * low_bytes)
    if low_bytes in (1, 2):
        ids = low_plane.view(f"<u{low_bytes}").astype(np.int32)
    else:
        padded = np.zeros((count, 4), np.uint8)
        padded[:, :low_bytes] = low_plane.reshape(count, low_bytes)
        ids = padded.view("<i4")[:, 0]
    if high_bits:
        packed = reader.take("u1", -(-count * high_bits // 8))
        high = _unpack_bits(packed, count, high_bits).astype(np.int32)
        high <<= np.int32(8 * low_bytes)
        ids |= high
    return ids


def _unpack_bits(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """`count` numbers of `bits` bits each (lowest first, from a byte's highest bit on), as uint8."""
    if 8 % bits == 0:  # a byte holds complete numbers: look them up
        return _byte_table(bits).take(packed).view(np.uint8)[:count]
    return _from_bits(np.unpackbits(packed, count=count * bits).reshape(count, bits))


@cache
def _byte_table(bits: int) -> np.ndarray:
    """The 8/bits numbers that each of the 256 bytes holds, as the bytes of one word that is looked up at once."""
    every_byte = np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(-1, bits)
    return _from_bits(every_byte).view(f"u{8 // bits}")


def _from_bits(planes: np.ndarray) -> np.ndarray:
    """The numbers whose bits [n, bits] are given, lowest first."""
    return (planes << np.arange(planes.shape[1], dtype=np.uint8)).sum(axis=1, dtype=np.uint8)


# ---- checks of decoded values, by the bits of fp16: numpy compares halves slowly ----

MINUS_INFINITY_BITS = -1024  # of fp16 as int16; +0 is 0, −0 is −32768; above it lie NaNs and positive numbers
INFINITY_BITS = 0x7C00


def _are_logps(halves: np.ndarray) -> bool:
    """Whether all fp16 values are ≤ 0 and none is NaN."""
    bits = halves.view(np.int16)
    if bits.max(initial=MINUS_INFINITY_BITS) == MINUS_INFINITY_BITS:
        return True
    return not ((bits > MINUS_INFINITY_BITS) & (bits != 0)).any()


def _are_steps(halves: np.ndarray) -> bool:
    """Whether all fp16 values are ≥ 0 and finite."""
    return bool(halves.view(np.uint16).max(initial=0) < INFINITY_BITS)


class _ColumnReader:
    """A payload read column by column, never past its end."""

    def __init__(self, payload: np.ndarray) -> None:
        self.remaining = payload

    def take(self, dtype: str, count: int) -> np.ndarray:
        """The next `count` values; ValueError when the payload is shorter."""
        size = np.dtype(dtype).itemsize * count
        if size > len(self.remaining):
            raise ValueError("a document's bytes end before its label positions do")
        column = self.remaining[:size].view(dtype)
        self.remaining = self.remaining[size:]
        return np.require(column, requirements="A")  # columns follow each other without gaps
