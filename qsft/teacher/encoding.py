"""How the teacher's rows of one document become bytes, and back: `exact` and `compact`. numpy only.

Every payload starts with two columns, one value per row: the number of slots and the label's log-prob (fp16).
Rows may differ in length; nothing is padded on disk. At k = 64 and a vocabulary of 151,936:

    exact     ids int32, log-probs fp16                                              387 bytes per row
    compact   ids in ⌈log2 V⌉ bits; log-probs as top (fp16) − level·range/255        214 bytes per row
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LOWEST = -65504.0  # the smallest finite fp16: a log-prob below it stays a live slot
LEVELS = 255
# The encoder tries slightly wider ranges and keeps the one whose levels fall closest to the likely tokens.
# Decoding is unaffected; KL falls by a factor of two to four where a few tokens hold the mass.
STRETCHES = 1 + 0.004 * np.arange(16, dtype=np.float32)


class Rows(NamedTuple):
    """The teacher at n label positions: ids [n,k], log-probs [n,k] (−inf: empty slot), the label's log-prob [n]."""

    ids: np.ndarray
    logps: np.ndarray
    label_logp: np.ndarray


def canonical(rows: Rows) -> Rows:
    """The same rows, likeliest slot first, empty slots last, log-probs in fp16's range and at most 0."""
    logps = rows.logps.astype(np.float32)
    if np.isnan(logps).any() or np.isnan(rows.label_logp).any():
        raise ValueError("a teacher row holds NaN; a cache stores log-probs only")
    logps = np.where(logps == -np.inf, -np.inf, np.clip(logps, LOWEST, 0.0))
    ids = rows.ids
    if (logps[:, 1:] > logps[:, :-1]).any():
        order = np.argsort(-logps, axis=1, kind="stable")
        ids, logps = np.take_along_axis(ids, order, 1), np.take_along_axis(logps, order, 1)
    return Rows(ids, logps, np.minimum(rows.label_logp, 0.0))


def truncate(rows: Rows, top_p: float | None, min_k: int) -> Rows:
    """The shortest prefix of every row that holds `top_p` of the mass, but at least `min_k` slots."""
    if top_p is None:
        return rows
    before = np.cumsum(np.exp(rows.logps.astype(np.float64)), axis=1) - np.exp(rows.logps.astype(np.float64))
    keep = (before < top_p) | (np.arange(rows.logps.shape[1]) < min_k)
    return rows._replace(logps=np.where(keep, rows.logps, -np.inf))


@dataclass(frozen=True)
class Codec(ABC):
    """Bytes from rows and rows from bytes; a subclass says how slots are packed."""

    k: int
    vocab_size: int

    def encode(self, rows: Rows) -> bytes:
        """The payload of one document."""
        rows = canonical(rows)
        live = rows.logps > -np.inf
        label_logp = np.where(rows.label_logp == -np.inf, -np.inf, np.maximum(rows.label_logp, LOWEST))
        columns = [live.sum(axis=1).astype(self._count), label_logp.astype("<f2")]
        return b"".join(column.tobytes() for column in [*columns, *self._pack(rows, live)])

    def decode(self, payload: np.ndarray, n: int) -> Rows:
        """The `n` rows of a payload (uint8), padded to k slots; ValueError when the bytes cannot be such rows."""
        columns = _Columns(payload)
        counts = columns.take(self._count, n)
        label_logp = columns.take("<f2", n)
        if n and int(counts.max()) > self.k:
            raise ValueError(f"a row claims {int(counts.max())} slots, the cache has k={self.k}")
        live = np.arange(self.k) < counts[:, None]
        ids, logps = self._unpack(columns, live)
        columns.end()
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocab_size:
            raise ValueError(f"a row holds an id outside the vocabulary of {self.vocab_size}")
        if not ((logps <= 0).all() and (label_logp <= 0).all()):
            raise ValueError("a row holds a log-prob above 0 or NaN")
        return Rows(_pad(ids, live, 0), _pad(logps, live, -np.inf), label_logp)

    @property
    def _count(self) -> str:
        return "u1" if self.k < 256 else "<u2"

    @abstractmethod
    def _pack(self, rows: Rows, live: np.ndarray) -> list[np.ndarray]:
        """The columns that hold the slots of canonical rows."""

    @abstractmethod
    def _unpack(self, columns: "_Columns", live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ids (int32) and log-probs (fp16) of all live slots, row after row."""


class Exact(Codec):
    """ids int32, log-probs fp16."""

    def _pack(self, rows: Rows, live: np.ndarray) -> list[np.ndarray]:
        return [rows.ids[live].astype("<i4"), rows.logps[live].astype("<f2")]

    def _unpack(self, columns: "_Columns", live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        slots = int(live.sum())
        return columns.take("<i4", slots), columns.take("<f2", slots)


class Compact(Codec):
    """ids in ⌈log2 V⌉ bits; log-probs as a level of 0…255 below the row's top. The top's own level is not stored."""

    def _pack(self, rows: Rows, live: np.ndarray) -> list[np.ndarray]:
        top, gap = _gaps(rows.logps, live)
        width, level = _quantise(gap, np.where(live, np.exp(rows.logps), 0.0))
        levels = level[live & _after_first(live)].astype(np.uint8)
        return [top.astype("<f2"), width.astype("<f2"), *_split_bits(rows.ids[live], self._bits), levels]

    def _unpack(self, columns: "_Columns", live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n, slots = len(live), int(live.sum())
        top, width = columns.take("<f2", n).astype(np.float32), columns.take("<f2", n).astype(np.float32)
        ids = _join_bits(columns, slots, self._bits)
        stored = live & _after_first(live)
        level = np.zeros(live.shape, np.float32)
        level[stored] = columns.take("u1", int(stored.sum()))
        logps = np.maximum(top[:, None] - level * (width[:, None] / LEVELS), LOWEST)
        return ids, logps[live].astype(np.float16)

    @property
    def _bits(self) -> int:
        return max(1, (self.vocab_size - 1).bit_length())


ENCODINGS: dict[str, type[Codec]] = {"exact": Exact, "compact": Compact}


def row_bytes(encoding: str, k: int, vocab_size: int) -> float:
    """Bytes per label position of `encoding` with k slots each, to estimate the disk needed."""
    id_bits, fixed, per_slot = (32, 3, 2) if encoding == "exact" else ((vocab_size - 1).bit_length(), 6, 1)
    return k * (id_bits / 8 + per_slot) + fixed + (k >= 256)


def _gaps(logps: np.ndarray, live: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row's top log-prob (0 for an empty row) and how far each live slot lies below it."""
    top = np.where(live[:, :1], logps[:, :1], 0.0)
    return top[:, 0], np.where(live, top - np.where(live, logps, 0.0), 0.0)


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


def _after_first(live: np.ndarray) -> np.ndarray:
    return np.broadcast_to(np.arange(live.shape[1]) > 0, live.shape)


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
    parts = np.zeros((count, 4), np.uint8)
    parts[:, :low] = columns.take("u1", count * low).reshape(count, low)
    ids = parts.view("<u4")[:, 0]
    if high:
        packed = columns.take("u1", -(-count * high // 8))
        planes = np.unpackbits(packed, count=count * high).reshape(count, high)
        for bit in range(high):
            ids |= planes[:, bit].astype(np.uint32) << np.uint32(8 * low + bit)
    return ids.astype(np.int32)


def _pad(flat: np.ndarray, live: np.ndarray, empty: float) -> np.ndarray:
    """The flat slots as [n,k]; rows of full length need no scatter."""
    if flat.size == live.size:
        return flat.reshape(live.shape)
    padded = np.full(live.shape, empty, flat.dtype)
    padded[live] = flat
    return padded


class _Columns:
    """A payload read column by column; never past its end."""

    def __init__(self, payload: np.ndarray) -> None:
        self._payload, self._at = payload, 0

    def take(self, dtype: str, count: int) -> np.ndarray:
        """The next `count` values; ValueError when the payload is shorter."""
        size = np.dtype(dtype).itemsize * count
        if self._at + size > len(self._payload):
            raise ValueError("a document's bytes end before its rows do")
        column = self._payload[self._at : self._at + size].view(dtype)
        self._at += size
        return np.require(column, requirements="A")  # columns follow each other without gaps

    def end(self) -> None:
        """ValueError when bytes are left over."""
        if self._at != len(self._payload):
            raise ValueError("a document has more bytes than its rows need")
