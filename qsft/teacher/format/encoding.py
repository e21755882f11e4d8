"""How the teacher's rows of one document become bytes, and back: `exact` and `compact`.

Every payload starts with three columns, one value per row: the number of slots, the label's log-prob and the log of
the mass outside the slots (both fp16; rounded log-probs do not give the tail back). Positions may differ in length;
nothing is padded on disk. At k = 64 and a vocabulary of 151,936:

    exact     ids int32, log-probs fp16                                              389 bytes per row
    compact   ids in ⌈log2 V⌉ bits; log-probs as top (fp16) − level·range/255        216 bytes per row

docs/cache_format.md says it byte by byte. Version 1 had no tail; it is decoded, no longer written.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from qsft.targets.view import TopK

LOWEST = -65504.0  # the smallest finite fp16: a log-prob below it stays a live slot
LEVELS = 255
# Cells (rows × k) that a decoder allocates at most: in all, and per byte beyond a harmless number of them.
MOST_CELLS, FREE_CELLS, CELLS_PER_BYTE = 1 << 28, 1 << 24, 8192
# The encoder tries slightly wider ranges and keeps the one whose levels fall closest to the likely tokens.
# Decoding is unaffected; KL falls by a factor of two to four where a few tokens hold the mass.
STRETCHES = 1 + 0.004 * np.arange(16, dtype=np.float32)


class TopKArrays(NamedTuple):
    """The teacher at n label positions: ids [n,k], log-probs [n,k] (−inf: empty slot), and one value per position.

    label_logp   the label's log-prob, in the slots or not
    log_tail     log of the mass outside the slots; None in a cache of version 1
    """

    ids: np.ndarray
    logps: np.ndarray
    label_logp: np.ndarray
    log_tail: np.ndarray | None = None

    @classmethod
    def of(cls, *parts: TopK) -> "TopKArrays":
        """The rows of a teacher on any device, one part after the other."""
        columns = zip(*((part.ids, part.logps, part.label_logp, part.log_tail) for part in parts))
        return cls(*(torch.cat(column).cpu().numpy() for column in columns))  # type: ignore[arg-type]

    def part(self, places: slice | np.ndarray) -> "TopKArrays":
        """The rows at `places`."""
        return TopKArrays(*(None if column is None else column[places] for column in self))  # type: ignore[arg-type]


def canonical(rows: TopKArrays) -> TopKArrays:
    """The same rows, likeliest slot first, empty slots last, log-probs in fp16's range and at most 0."""
    ids, logps, label_logp, log_tail = rows
    if any(np.isnan(column).any() for column in (logps, label_logp, log_tail) if column is not None):
        raise ValueError(
            "the teacher returned NaN for a document, so nothing of this batch was stored; what was published stays. "
            "Its weights may be damaged, or its dtype too narrow: try `dtype='float32'` or 'bfloat16'."
        )
    logps = _storable(logps.astype(np.float32, copy=False))
    if (logps[:, 1:] > logps[:, :-1]).any():
        order = np.argsort(-logps, axis=1, kind="stable")
        ids, logps = np.take_along_axis(ids, order, 1), np.take_along_axis(logps, order, 1)
    return TopKArrays(ids, logps, _storable(label_logp), None if log_tail is None else _storable(log_tail))


def truncate(rows: TopKArrays, top_p: float | None, min_k: int) -> TopKArrays:
    """The shortest prefix of every row that holds `top_p` of the mass, but at least `min_k` slots; the rest is tail."""
    if top_p is None:
        return rows
    mass = np.exp(rows.logps.astype(np.float64))
    keep = (np.cumsum(mass, axis=1) - mass < top_p) | (np.arange(mass.shape[1]) < min_k)
    tail = None
    if rows.log_tail is not None:
        with np.errstate(divide="ignore"):
            tail = np.log(np.exp(rows.log_tail.astype(np.float64)) + np.where(keep, 0.0, mass).sum(axis=1))
    return rows._replace(logps=np.where(keep, rows.logps, -np.inf), log_tail=tail)


@dataclass(frozen=True)
class Codec(ABC):
    """Bytes from rows and rows from bytes; a subclass says how slots are packed."""

    k: int
    vocab_size: int
    version: int = 2

    def encode(self, rows: TopKArrays) -> bytes:
        """The payload of one document."""
        if self.version != 2 or rows.log_tail is None:
            raise ValueError("only rows with a log_tail are written, in format version 2")
        rows = canonical(rows)
        live = rows.logps > -np.inf
        columns = [live.sum(axis=1).astype(self._count), rows.label_logp.astype("<f2"), rows.log_tail.astype("<f2")]  # type: ignore[union-attr]
        return b"".join(column.tobytes() for column in [*columns, *self._pack(rows, live)])

    def decode(self, payload: np.ndarray, n: int) -> TopKArrays:
        """The `n` rows of a payload (uint8), padded to k slots; ValueError when the bytes cannot be such rows."""
        if self.is_implausible(n, len(payload)):
            raise ValueError(f"{len(payload)} bytes claim {n} rows of k={self.k} slots")
        columns = _Columns(payload)
        counts = columns.take(self._count, n)
        label_logp = columns.take("<f2", n)
        log_tail = columns.take("<f2", n) if self.version > 1 else None
        if n and int(counts.max()) > self.k:
            raise ValueError(f"a row claims {int(counts.max())} slots, the cache has k={self.k}")
        live = None if n and int(counts.min()) == self.k else np.arange(self.k) < counts[:, None]
        ids, logps = self._unpack(columns, n, live)
        if len(columns.left):
            raise ValueError("a document has more bytes than its rows need")
        if ids.size and int(ids.view("<u4").max()) >= self.vocab_size:  # unsigned: below 0 is beyond it too
            raise ValueError(f"a row holds an id outside the vocabulary of {self.vocab_size}")
        if not all(_is_logp(column) for column in (logps, label_logp, log_tail) if column is not None):
            raise ValueError("a row holds a log-prob above 0 or NaN")
        return TopKArrays(self._pad(ids, live, 0), self._pad(logps, live, -np.inf), label_logp, log_tail)

    def is_implausible(self, rows: Any, size: Any) -> Any:
        """Whether `size` bytes that claim so many rows would make a reader allocate far more than they hold.

        Of numbers, or of arrays of them.
        """
        cells = rows * self.k
        return (cells > MOST_CELLS) | ((cells > FREE_CELLS) & (cells > CELLS_PER_BYTE * size))

    @property
    def _count(self) -> str:
        return "u1" if self.k < 256 else "<u2"

    def _pad(self, flat: np.ndarray, live: np.ndarray | None, empty: float) -> np.ndarray:
        """The flat slots as [n,k]; rows of full length need no scatter."""
        if live is None:
            return flat.reshape(-1, self.k)
        padded = np.full(live.shape, empty, flat.dtype)
        padded[live] = flat
        return padded

    @abstractmethod
    def _pack(self, rows: TopKArrays, live: np.ndarray) -> list[np.ndarray]:
        """The columns that hold the slots of canonical rows."""

    @abstractmethod
    def _unpack(self, columns: "_Columns", n: int, live: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """ids (int32) and log-probs (fp16) of all `live` [n,k] slots, row after row; None: all of them are."""


class Exact(Codec):
    """ids int32, log-probs fp16."""

    def _pack(self, rows: TopKArrays, live: np.ndarray) -> list[np.ndarray]:
        return [rows.ids[live].astype("<i4"), rows.logps[live].astype("<f2")]

    def _unpack(self, columns: "_Columns", n: int, live: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        slots = n * self.k if live is None else int(live.sum())
        return columns.take("<i4", slots), columns.take("<f2", slots)


class Compact(Codec):
    """ids in ⌈log2 V⌉ bits; log-probs as a level of 0…255 below the row's top. The top's own level is not stored."""

    def _pack(self, rows: TopKArrays, live: np.ndarray) -> list[np.ndarray]:
        top = np.where(live[:, :1], rows.logps[:, :1], 0.0)  # 0 for an empty row
        gap = np.where(live, top - np.where(live, rows.logps, 0.0), 0.0)
        width, level = _quantise(gap, np.where(live, np.exp(rows.logps), 0.0))
        levels = level[:, 1:][live[:, 1:]].astype(np.uint8)
        return [top[:, 0].astype("<f2"), width.astype("<f2"), *_split_bits(rows.ids[live], self._bits), levels]

    def _unpack(self, columns: "_Columns", n: int, live: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        top, width = columns.take("<f2", n).astype(np.float32), columns.take("<f2", n).astype(np.float32)
        ids = _join_bits(columns, n * self.k if live is None else int(live.sum()), self._bits)
        logps = np.zeros((n, self.k), np.float32)
        if live is None:
            logps[:, 1:] = columns.take("u1", len(ids) - n).reshape(n, -1)
        else:
            logps[:, 1:][live[:, 1:]] = columns.take("u1", len(ids) - int(live[:, 0].sum()))
        logps *= -(width / LEVELS)[:, None]
        logps += top[:, None]
        if n and float((top - width).min()) < LOWEST:  # hardly ever: a pass over all slots saved
            np.maximum(logps, LOWEST, out=logps)
        slots = logps.reshape(-1) if live is None else logps[live]
        return ids, torch.from_numpy(slots).half().numpy()  # numpy rounds the same, six times slower

    @property
    def _bits(self) -> int:
        return max(1, (self.vocab_size - 1).bit_length())


ENCODINGS: dict[str, type[Codec]] = {"exact": Exact, "compact": Compact}


def bytes_per_label_token(encoding: str, k: int, vocab_size: int) -> float:
    """Bytes per label position of `encoding` with k slots each, to estimate the disk needed."""
    id_bits, fixed, per_slot = (32, 5, 2) if encoding == "exact" else ((vocab_size - 1).bit_length(), 8, 1)
    return k * (id_bits / 8 + per_slot) + fixed + (k >= 256)


def _storable(logps: np.ndarray) -> np.ndarray:
    """Log-probs at most 0 and within fp16's range; −inf stays."""
    return np.where(logps == -np.inf, -np.inf, np.clip(logps, LOWEST, 0.0))


def _quantise(gap: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Per row the range and the levels that minimise Σ weight·error², which bounds twice the KL."""
    span = gap.max(axis=1)
    best_loss = np.full(len(gap), np.inf)
    best_width, best_level = np.zeros(len(gap), np.float32), np.zeros(gap.shape, np.float32)
    for stretch in STRETCHES:
        width = _half_above(np.minimum(span * stretch, -LOWEST))
        step = np.where(width > 0, width, 1.0)[:, None] / LEVELS
        level = np.minimum(np.rint(gap / step), LEVELS)
        loss = (weight * np.square(gap - level * step)).sum(axis=1)
        better = loss < best_loss
        best_loss[better], best_width[better], best_level[better] = loss[better], width[better], level[better]
    return best_width, best_level


def _half_above(x: np.ndarray) -> np.ndarray:
    """The smallest fp16 value that is not below x, as float32: the farthest slot must not be clipped."""
    half = x.astype(np.float16)
    return np.where(half.astype(np.float32) < x, np.nextafter(half, np.float16(np.inf)), half).astype(np.float32)


def _split_bits(ids: np.ndarray, bits: int) -> list[np.ndarray]:
    """Two planes: the whole low bytes of every id, and its remaining high bits packed."""
    low, high = divmod(bits, 8)
    planes = [np.ascontiguousarray(ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :low])]
    if high:
        rest = ids.astype(np.uint32) >> (8 * low)
        planes.append(np.packbits(((rest[:, None] >> np.arange(high, dtype=np.uint32)) & 1).astype(np.uint8)))
    return planes


def _join_bits(columns: "_Columns", count: int, bits: int) -> np.ndarray:
    """The ids that `_split_bits` took apart, as int32."""
    low, high = divmod(bits, 8)
    whole = columns.take("u1", count * low)
    if low in (1, 2):
        ids = whole.view(f"<u{low}").astype(np.int32)
    else:
        parts = np.zeros((count, 4), np.uint8)
        parts[:, :low] = whole.reshape(count, low)
        ids = parts.view("<i4")[:, 0]
    if high:
        rest = _high_bits(columns.take("u1", -(-count * high // 8)), count, high).astype(np.int32)
        rest <<= np.int32(8 * low)
        ids |= rest
    return ids


def _high_bits(packed: np.ndarray, count: int, bits: int) -> np.ndarray:
    """`count` numbers of `bits` bits each (lowest first, from a byte's highest bit on), as uint8."""
    if 8 % bits == 0:  # a byte holds whole numbers: look them up
        return _byte_table(bits).take(packed).view(np.uint8)[:count]
    return _numbers(np.unpackbits(packed, count=count * bits).reshape(count, bits))


@cache
def _byte_table(bits: int) -> np.ndarray:
    """The 8/bits numbers that each of the 256 bytes holds: as bytes, in one word that is looked up at once."""
    return _numbers(np.unpackbits(np.arange(256, dtype=np.uint8)).reshape(-1, bits)).view(f"u{8 // bits}")


def _numbers(planes: np.ndarray) -> np.ndarray:
    """The numbers whose bits [n,bits] are given, lowest first."""
    return (planes << np.arange(planes.shape[1], dtype=np.uint8)).sum(axis=1, dtype=np.uint8)


def _is_logp(half: np.ndarray) -> bool:
    """Whether all fp16 values are ≤ 0 and none is NaN, told by their bits: numpy compares halves slowly."""
    bits = half.view(np.int16)  # 0 is +0, −32768 is −0, −1024 is −inf; above it come NaN and what is positive
    return bool(bits.max(initial=-1024) == -1024) or not ((bits > -1024) & (bits != 0)).any()


class _Columns:
    """A payload read column by column; never past its end."""

    def __init__(self, payload: np.ndarray) -> None:
        self.left = payload

    def take(self, dtype: str, count: int) -> np.ndarray:
        """The next `count` values; ValueError when the payload is shorter."""
        size = np.dtype(dtype).itemsize * count
        if size > len(self.left):
            raise ValueError("a document's bytes end before its rows do")
        column, self.left = self.left[:size].view(dtype), self.left[size:]
        return np.require(column, requirements="A")  # columns follow each other without gaps
