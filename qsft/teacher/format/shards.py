"""A shard: a safetensors file that describes itself and is named after the digest of its bytes.

    keys        uint8 [n, 16]   the documents
    positions   int32 [n]       label positions of each
    offsets     int64 [n + 1]   where its bytes lie in `payload`
    crc         uint32 [n]      of key, positions and bytes
    payload     uint8           one encoded document after the other (encoding.py)
    sample_*                    a few complete documents, so that `qsft cache verify --teacher` needs no data set

The header carries the format version, the cache's identity and statistics of what was written.
"""

import itertools
import json
import os
import re
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from qsft.files import publish
from qsft.fingerprints import digest
from qsft.teacher.format.encoding import Codec, TopKArrays

VERSION = 4
SHARD_NAME = re.compile(r"[0-9a-f]{32}\.safetensors")
INDEX_TYPES = {"keys": np.uint8, "positions": np.int32, "offsets": np.int64, "crc": np.uint32}
FEWEST_SAMPLES = 8
MOST_SAMPLES = 64
SAMPLE_SHARE = 0.01  # of a shard's bytes
OPEN_FILES = 128  # that a process keeps open at most


class DamagedShard(ValueError):
    """A shard whose bytes are not those that were published."""

    def __init__(self, path: Path, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"{shard_title(path)} is damaged: {reason}. Run `qsft cache verify {path.parent} --drop` to remove it, "
            "then the same `qsft cache build`: only what is lost is computed."
        )


class UnusableShard(ValueError):
    """A shard that cannot be used although its bytes are the ones that were written; it is never removed."""


def shard_title(path: Path) -> str:
    return f"shard {path.name} of the teacher cache {path.parent}"


@dataclass
class ShardStatistics:
    """What was measured while writing; statistics of several shards add up."""

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
            raise ValueError("a statistic is not a finite number ≥ 0")

    @classmethod
    def of_document(cls, log_probs: TopKArrays, payload: bytes) -> "ShardStatistics":
        live = log_probs.logps > -np.inf
        tail = np.exp(log_probs.log_tail.astype(np.float64))
        return cls(
            documents=1,
            label_tokens=len(live),
            payload_bytes=len(payload),
            slots=int(live.sum()),
            tail_mass=float(tail.sum()),
        )

    def measure_error(self, log_probs: TopKArrays, payload: bytes, codec: Codec) -> None:
        """Add the encoding's error on a document, against the teacher's own float32 log-probs."""
        live = log_probs.logps > -np.inf
        decoded = codec.decode(np.frombuffer(payload, np.uint8), len(live))
        errors = np.abs(decoded.logps[live].astype(np.float32) - log_probs.logps[live])
        tail = np.exp(log_probs.log_tail.astype(np.float64))
        stored_tail = np.exp(decoded.log_tail.astype(np.float64))
        tail_errors = np.abs(stored_tail / np.maximum(tail, 1e-300) - 1)[tail > 0]
        self.compared += len(live)
        self.kl += max(float(encoding_kl(log_probs, decoded).sum()), 0.0)
        self.max_error = max(self.max_error, float(errors.max(initial=0.0)))
        self.tail_error = max(self.tail_error, float(tail_errors.max(initial=0.0)))

    def __add__(self, other: "ShardStatistics") -> "ShardStatistics":
        total = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        total["max_error"] = max(self.max_error, other.max_error)
        total["tail_error"] = max(self.tail_error, other.tail_error)
        return ShardStatistics(**total)

    def summary(self, total_bytes: int) -> dict[str, Any]:
        """What the manifest says was measured; nothing for an empty cache."""
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


def encoding_kl(original: TopKArrays, decoded: TopKArrays) -> np.ndarray:
    """KL(original ‖ decoded) per position, over its slots and the tail as one more outcome; both normalized."""
    logp = np.column_stack([original.logps.astype(np.float64), original.log_tail])
    logq = np.column_stack([decoded.logps.astype(np.float64), decoded.log_tail])
    p = np.exp(logp)
    q = np.exp(logq)
    difference = np.where(p > 0, logp, 0.0) - np.where(p > 0, logq, 0.0)
    return (p * difference).sum(axis=1) / p.sum(axis=1) - np.log(p.sum(axis=1) / q.sum(axis=1))


class EncodedDocument(NamedTuple):
    """A document on its way into a shard; `tokens` [2, T] are its input_ids and labels."""

    key: bytes
    positions: int
    payload: bytes
    tokens: np.ndarray


@dataclass
class ShardBuilder:
    """Collects encoded documents and publishes them as one shard."""

    documents: list[EncodedDocument] = field(default_factory=list)
    statistics: ShardStatistics = field(default_factory=ShardStatistics)

    def add(self, document: EncodedDocument, statistics: ShardStatistics) -> None:
        self.documents.append(document)
        self.statistics += statistics

    def publish(self, directory: Path, identity: dict[str, Any]) -> Path:
        header = {"version": VERSION, "identity": identity, "statistics": asdict(self.statistics)}
        content = save(self._tensors(), {"qsft": json.dumps(header)})
        path = directory / f"{digest(content)}.safetensors"
        publish(path, content, what="the teacher cache")
        return path

    def _tensors(self) -> dict[str, np.ndarray]:
        sample = self._sample()
        checksums = [checksum(document.key, document.positions, document.payload) for document in self.documents]
        return {
            "keys": np.frombuffer(b"".join(document.key for document in self.documents), np.uint8).reshape(-1, 16),
            "positions": np.array([document.positions for document in self.documents], np.int32),
            "offsets": np.cumsum([0, *(len(document.payload) for document in self.documents)], dtype=np.int64),
            "crc": np.array(checksums, np.uint32),
            "payload": np.frombuffer(b"".join(document.payload for document in self.documents), np.uint8),
            "sample_tokens": np.concatenate(sample, axis=1).astype(np.int32),
            "sample_offsets": np.cumsum([0, *(tokens.shape[1] for tokens in sample)], dtype=np.int64),
        }

    def _sample(self) -> list[np.ndarray]:
        """8 to 64 complete documents spread over the shard, about one percent of its size."""
        tokens = [document.tokens for document in self.documents]
        affordable = SAMPLE_SHARE * self.statistics.payload_bytes / np.mean([document.nbytes for document in tokens])
        count = min(int(np.clip(affordable, FEWEST_SAMPLES, MOST_SAMPLES)), len(tokens))
        return [tokens[i] for i in np.linspace(0, len(tokens) - 1, count).astype(int)]


class Shard:
    """A published shard: its index in memory, its payload read from disk document by document.

    The payload is read with `pread`, not through a memory map: a file that is truncated while it is in use then raises
    DamagedShard instead of killing the process with SIGBUS.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():  # opening a FIFO would block for ever
            raise DamagedShard(path, "it is not a regular file")
        try:
            path.open("rb").close()  # safetensors reports a file that may not be read as missing
            with safe_open(path, framework="numpy") as file:
                header = json.loads((file.metadata() or {})["qsft"])
                self.identity = header["identity"]
                self.statistics = ShardStatistics(**header["statistics"])
                self.version = header["version"]
                index = {name: file.get_tensor(name) for name in INDEX_TYPES}
                payload_shape = file.get_slice("payload").get_shape()
            self._payload_start = _tensor_start(path, "payload")
        except PermissionError as error:
            raise PermissionError(
                f"{shard_title(path)} cannot be read by this user. Whoever captured it can allow it: chmod a+r."
            ) from error
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DamagedShard(path, f"its header cannot be read ({error})") from error
        self.keys = index["keys"]
        self.positions = index["positions"]
        self._offsets = index["offsets"]
        self._crc = index["crc"]
        self._check_index(index, payload_shape)
        self._file_number = _files.new_number()
        weakref.finalize(self, _files.close, self._file_number)

    def __len__(self) -> int:
        return len(self.positions)

    def read(self, document: int, codec: Codec) -> TopKArrays:
        """The decoded log-probs of a document, after its checksum was checked."""
        payload = self.read_payload(document)
        try:
            return codec.decode(payload, int(self.positions[document]))
        except ValueError as error:
            raise DamagedShard(self.path, f"document {document}: {error}") from error

    def read_payload(self, document: int) -> np.ndarray:
        """The document's bytes; DamagedShard when they are not those that were written."""
        start = int(self._offsets[document])
        size = int(self._offsets[document + 1]) - start
        payload = np.empty(size, np.uint8)
        if _files.read_into(payload, self._file_number, self.path, self._payload_start + start) < size:
            raise DamagedShard(self.path, f"it ends inside document {document}: the file was truncated")
        if checksum(self.keys[document].tobytes(), int(self.positions[document]), payload) != self._crc[document]:
            raise DamagedShard(self.path, f"the checksum of document {document} does not match its bytes")
        return payload

    def sample(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The (input_ids, labels) of the few documents that the shard keeps complete."""
        try:
            with safe_open(self.path, framework="numpy") as file:
                tokens = file.get_tensor("sample_tokens")
                offsets = file.get_tensor("sample_offsets")
        except (SafetensorError, OSError) as error:
            raise DamagedShard(self.path, f"its sample documents cannot be read ({error})") from error
        if tokens.ndim != 2 or len(tokens) != 2 or offsets.ndim != 1 or tokens.dtype != np.int32:
            raise DamagedShard(self.path, f"its sample documents have shapes {tokens.shape} and {offsets.shape}")
        return [(tokens[0, start:end], tokens[1, start:end]) for start, end in pairwise(offsets)]

    def check_belongs_to(self, version: int, identity: dict[str, Any]) -> None:
        """Raise UnusableShard if the cache it lies in has another version or identity."""
        if self.version != version or self.identity != identity:
            raise UnusableShard(
                f"{shard_title(self.path)} is sound, but manifest.json describes another capture (teacher, top_k, "
                "encoding or version), so `qsft cache verify --drop` removes neither. Move the shard to the cache it "
                "came from, or manifest.json away, which is then written anew from the shards."
            )

    def check_sizes(self, codec: Codec) -> None:
        """Raise DamagedShard if a document claims so many positions that reading it would exhaust the memory."""
        sizes = np.diff(self._offsets)
        implausible = np.flatnonzero(codec.is_implausible(self.positions.astype(np.int64), sizes))
        if len(implausible):
            first = implausible[0]
            claim = f"{sizes[first]} bytes claim {self.positions[first]} label positions of k={codec.k} slots"
            raise DamagedShard(self.path, claim)

    def _check_index(self, index: Mapping[str, np.ndarray], payload_shape: list[int]) -> None:
        """Raise DamagedShard for an index that contradicts itself, before anything is allocated from it."""
        if type(self.version) is not int or self.version != VERSION:
            raise DamagedShard(self.path, f"it has the format version {self.version!r}, this qsft reads {VERSION}")
        n = self.keys.shape[0] if self.keys.ndim else 0
        shapes = {"keys": (n, 16), "positions": (n,), "offsets": (n + 1,), "crc": (n,)}
        for name, array in index.items():
            if array.shape != shapes[name] or array.dtype != INDEX_TYPES[name]:
                raise DamagedShard(self.path, f"its index {name!r} has shape {array.shape} and type {array.dtype}")
        lengths = np.diff(self._offsets)
        covers_payload = len(payload_shape) == 1 and self._offsets[0] == 0 and self._offsets[-1] == payload_shape[0]
        if not covers_payload or (lengths < 0).any():
            raise DamagedShard(self.path, "its offsets do not cover its payload")
        if (self.positions < 1).any() or (self.positions > lengths).any():
            raise DamagedShard(self.path, "it claims more label positions than it has bytes")


class _OpenFiles:
    """Reads parts of many files and keeps the recently used ones open.

    A cache of many shards would exceed the limit on open files of a process, so the least recently used are closed.
    """

    def __init__(self) -> None:
        self._handles: OrderedDict[int, int] = OrderedDict()  # {number of a shard: file descriptor}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._new_lock)  # another thread may hold it while this one forks

    def new_number(self) -> int:
        """A number for one more file."""
        return next(self._numbers)

    def read_into(self, buffer: Any, number: int, path: Path, start: int) -> int:
        """Fill `buffer` with the bytes of a file from `start` on; the number of bytes that were there."""
        with self._lock:
            return os.preadv(self._handle(number, path), [buffer], start)

    def close(self, number: int) -> None:
        handle = self._handles.pop(number, None)
        if handle is not None:
            os.close(handle)

    def _handle(self, number: int, path: Path) -> int:
        handle = self._handles.get(number)
        if handle is not None:
            self._handles.move_to_end(number)
            return handle
        try:
            handle = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise DamagedShard(path, "the file is missing") from error
        self._handles[number] = handle
        if len(self._handles) > OPEN_FILES:
            _, oldest = self._handles.popitem(last=False)
            os.close(oldest)
        return handle

    def _new_lock(self) -> None:
        self._lock = threading.Lock()


_files = _OpenFiles()


def _tensor_start(path: Path, name: str) -> int:
    """Where a tensor's bytes start in a safetensors file: after 8 bytes of header length and the header."""
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(header_size))
    return 8 + header_size + int(header[name]["data_offsets"][0])


def checksum(key: bytes, positions: int, payload: Any) -> int:
    """CRC-32 of a document's bytes, bound to its key and its number of label positions."""
    return zlib.crc32(payload, zlib.crc32(key + positions.to_bytes(4, "little", signed=True)))


def published_shards(directory: Path) -> list[Path]:
    """The shards of a cache in a fixed order; whatever else lies in the directory is ignored."""
    return sorted(path for path in directory.iterdir() if SHARD_NAME.fullmatch(path.name))
