"""A shard: a safetensors file that describes itself and is named after the digest of its bytes.

    keys     uint8 [n,16]   the documents
    rows     int32 [n]      label positions of each
    offsets  int64 [n+1]    where its bytes lie in `payload`
    crc      uint32 [n]     of key, rows and bytes
    payload  uint8          one encoded document after the other (encoding.py)
    sample_* a few whole documents, so that `qsft cache verify --teacher` needs no data set

The header carries the cache's identity and what was measured while writing.
"""

import json
import re
import zlib
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from qsft.files import publish
from qsft.fingerprints import digest
from qsft.teacher.format.encoding import Codec, TopKArrays

VERSION, READ_VERSIONS = 2, (1, 2)
NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
INDEX = {"keys": np.uint8, "rows": np.int32, "offsets": np.int64, "crc": np.uint32}
FEWEST_SAMPLES, MOST_SAMPLES, SAMPLE_SHARE = 8, 64, 0.01


class DamagedShard(ValueError):
    """A shard whose bytes are not those that were published."""

    why = ""


class UnusableShard(ValueError):
    """A shard that cannot be used though its bytes are the ones that were written: not damage, so never removed."""


def shard_name(path: Path) -> str:
    return f"shard {path.name} of the teacher cache {path.parent}"


def damaged(path: Path, why: str) -> DamagedShard:
    error = DamagedShard(
        f"{shard_name(path)} is damaged: {why}. Run `qsft cache verify "
        f"{path.parent} --drop` to remove it, then the same `qsft cache build`: only what is lost is computed."
    )
    error.why = why
    return error


@dataclass
class Facts:
    """What was measured while writing; facts add up over shards."""

    documents: int = 0
    label_tokens: int = 0
    payload_bytes: int = 0
    slots: int = 0
    tail_mass: float = 0.0  # summed over label tokens
    compared: int = 0  # label tokens on which the encoding's error was measured
    kl: float = 0.0  # summed over them
    max_error: float = 0.0
    tail_error: float = 0.0  # the largest relative error of the mass outside the slots

    def __post_init__(self) -> None:
        if not all(type(value) in (int, float) and 0 <= value < float("inf") for value in vars(self).values()):
            raise ValueError("a measured fact is not a finite number ≥ 0")

    @classmethod
    def of(cls, rows: TopKArrays, payload: bytes, codec: Codec | None) -> "Facts":
        """Those of one document; with `codec` the error of its encoding too, against the teacher's own float32."""
        live, tail = rows.logps > -np.inf, np.exp(rows.log_tail.astype(np.float64))  # type: ignore[union-attr]
        facts = cls(1, len(live), len(payload), int(live.sum()), float(tail.sum()))
        if codec is not None:
            decoded = codec.decode(np.frombuffer(payload, np.uint8), len(live))
            facts.compared = len(live)
            facts.kl = float(encoding_kl(rows, decoded).sum())
            facts.max_error = float(np.abs(decoded.logps[live] - rows.logps[live]).max(initial=0.0))
            stored = np.exp(decoded.log_tail.astype(np.float64))  # type: ignore[union-attr]
            facts.tail_error = float(np.abs(stored / np.maximum(tail, 1e-300) - 1)[tail > 0].max(initial=0.0))
        return facts

    def __add__(self, other: "Facts") -> "Facts":
        total = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        worst = {name: max(getattr(self, name), getattr(other, name)) for name in ("max_error", "tail_error")}
        return Facts(**total | worst)

    def summary(self, total_bytes: int) -> dict[str, Any]:
        if not self.label_tokens:
            return {}
        return {
            "documents": self.documents,
            "label_tokens": self.label_tokens,
            "bytes": total_bytes,
            "bytes_per_label_token": round(self.payload_bytes / self.label_tokens, 3),
            "index_bytes_per_document": round((total_bytes - self.payload_bytes) / self.documents, 1),
            "mean_k": round(self.slots / self.label_tokens, 3),
            "tail_mass": self.tail_mass / self.label_tokens,
            "encoding_kl": self.kl / max(self.compared, 1),
            "encoding_max_error": self.max_error,
            "encoding_tail_error": self.tail_error,
            "encoding_compared_on": self.compared,
        }


def encoding_kl(exact: TopKArrays, decoded: TopKArrays) -> np.ndarray:
    """KL(exact ‖ decoded) per row, over its slots and, where both have it, the rest as one more outcome; normalised."""
    logp, logq = exact.logps.astype(np.float64), decoded.logps.astype(np.float64)
    if exact.log_tail is not None and decoded.log_tail is not None:
        logp, logq = np.column_stack([logp, exact.log_tail]), np.column_stack([logq, decoded.log_tail])
    p, q = np.exp(logp), np.exp(logq)
    gap = np.where(p > 0, logp, 0.0) - np.where(p > 0, logq, 0.0)
    return (p * gap).sum(axis=1) / p.sum(axis=1) - np.log(p.sum(axis=1) / q.sum(axis=1))


@dataclass
class Draft:
    """Documents on their way into a shard."""

    documents: list[tuple[bytes, int, bytes, np.ndarray]] = field(default_factory=list)  # key, rows, payload, tokens
    facts: Facts = field(default_factory=Facts)

    def add(self, key: bytes, payload: bytes, tokens: np.ndarray, facts: Facts) -> None:
        """One more document; `tokens` [2,T] are its input_ids and labels, `facts` what was measured of it."""
        self.documents.append((key, facts.label_tokens, payload, tokens))
        self.facts += facts

    def publish(self, directory: Path, identity: dict[str, Any]) -> Path:
        header = {"version": VERSION, "identity": identity, "facts": asdict(self.facts)}
        content = save(self._tensors(), {"qsft": json.dumps(header)})
        path = directory / f"{digest(content)}.safetensors"
        publish(path, content, what="the teacher cache")
        return path

    def _tensors(self) -> dict[str, np.ndarray]:
        keys, rows, payloads, tokens = zip(*self.documents)
        # 8 to 64 whole documents spread over the shard, about one percent of its size.
        budget = SAMPLE_SHARE * self.facts.payload_bytes / np.mean([document.nbytes for document in tokens])
        count = min(int(np.clip(budget, FEWEST_SAMPLES, MOST_SAMPLES)), len(tokens))
        sample = [tokens[i] for i in np.linspace(0, len(tokens) - 1, count).astype(int)]
        return {
            "keys": np.frombuffer(b"".join(keys), np.uint8).reshape(-1, 16),
            "rows": np.array(rows, np.int32),
            "offsets": np.cumsum([0, *map(len, payloads)], dtype=np.int64),
            "crc": np.array([checksum(*document[:3]) for document in self.documents], np.uint32),
            "payload": np.frombuffer(b"".join(payloads), np.uint8),
            "sample_tokens": np.concatenate(sample, axis=1).astype(np.int32),
            "sample_offsets": np.cumsum([0, *(document.shape[1] for document in sample)], dtype=np.int64),
        }


class Shard:
    """A published shard: its index in memory, its payload memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():  # a FIFO would keep its reader waiting for ever
            raise damaged(path, "it is not a regular file")
        try:
            self._file = safe_open(path, framework="numpy")
            header = json.loads((self._file.metadata() or {})["qsft"])
            self.identity, self.facts = header["identity"], Facts(**header["facts"])
            self.version = header.get("version", 1)
            index = {name: self._file.get_tensor(name) for name in INDEX}
            self._payload = self._file.get_slice("payload")
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise damaged(path, f"its header cannot be read ({error})") from error
        self.keys, self.rows, self._offsets, self._crc = index.values()
        self._check_index(index)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, document: int, codec: Codec) -> TopKArrays:
        """The decoded rows of the `document`-th document, after its checksum was checked."""
        payload = self.checked(document)
        try:
            return codec.decode(payload, int(self.rows[document]))
        except ValueError as error:
            raise damaged(self.path, f"document {document}: {error}") from error

    def checked(self, document: int) -> np.ndarray:
        """The document's bytes; DamagedShard when they are not those that were written."""
        start, end = int(self._offsets[document]), int(self._offsets[document + 1])
        payload = self._payload[start:end]
        if checksum(self.keys[document].tobytes(), int(self.rows[document]), payload) != self._crc[document]:
            raise damaged(self.path, f"the checksum of document {document} does not match its bytes")
        return payload

    def sample(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The (input_ids, labels) of the few documents the shard keeps whole."""
        try:
            tokens, offsets = self._file.get_tensor("sample_tokens"), self._file.get_tensor("sample_offsets")
        except SafetensorError as error:
            raise damaged(self.path, f"its sample documents cannot be read ({error})") from error
        if tokens.ndim != 2 or len(tokens) != 2 or offsets.ndim != 1 or tokens.dtype != np.int32:
            raise damaged(self.path, f"its sample documents have shapes {tokens.shape} and {offsets.shape}")
        return [(tokens[0, a:b], tokens[1, a:b]) for a, b in pairwise(offsets)]

    def _check_index(self, index: dict[str, np.ndarray]) -> None:
        """An index that lies is refused before anything is allocated from it."""
        if self.version not in READ_VERSIONS or type(self.version) is not int:
            raise damaged(self.path, f"it claims the format version {self.version!r}")
        n, size = len(self.keys), self._payload.get_shape()
        shapes = {"keys": (n, 16), "rows": (n,), "offsets": (n + 1,), "crc": (n,)}
        for name, array in index.items():
            if array.shape != shapes[name] or array.dtype != INDEX[name]:
                raise damaged(self.path, f"its index {name!r} has shape {array.shape} and type {array.dtype}")
        lengths = np.diff(self._offsets)
        if len(size) != 1 or self._offsets[0] != 0 or self._offsets[-1] != size[0] or (lengths < 0).any():
            raise damaged(self.path, "its offsets do not cover its payload")
        if (self.rows < 1).any() or (self.rows > lengths).any():
            raise damaged(self.path, "it claims more label positions than it has bytes")

    def refuse_foreign(self, version: int, identity: dict[str, Any]) -> None:
        """UnusableShard where the cache it lies in has another version or identity."""
        if (self.version, self.identity) != (version, identity):
            raise UnusableShard(
                f"{shard_name(self.path)} is sound, but manifest.json describes another capture (teacher, k, encoding "
                "or version), so `qsft cache verify --drop` removes neither. Move the shard to the cache it came from, "
                "or manifest.json away, which is then written anew from the shards."
            )

    def check_sizes(self, codec: Codec) -> None:
        """DamagedShard when a document claims so many rows that reading them would exhaust the memory."""
        sizes = np.diff(self._offsets)
        for i in np.flatnonzero(codec.is_implausible(self.rows.astype(np.int64), sizes))[:1]:
            raise damaged(self.path, f"{sizes[i]} bytes claim {self.rows[i]} rows of k={codec.k} slots")


def checksum(key: bytes, rows: int, payload: Any) -> int:
    """CRC-32 of a document's bytes, bound to its key and its number of rows."""
    return zlib.crc32(payload, zlib.crc32(key + rows.to_bytes(4, "little", signed=True)))


def published(directory: Path) -> list[Path]:
    """The shards of a cache in a fixed order; whatever else lies in the directory is left alone."""
    return sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))
