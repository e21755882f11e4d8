"""What a document is, after TRL's preparation: in a data set, and in a collated batch; and the key that names it.

A document is a unit of attention: an unpacked row, or one segment of a packed row (`seq_lengths`). The cache is keyed
by a document's tokens, so both readings must agree; a test compares them for every way TRL arranges data.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qsft.fingerprints import digest, digest_json
from qsft.targets.view import IGNORED

Tokens = Any  # a list, a numpy array or a tensor of integers
Document = dict[str, np.ndarray]  # input_ids and labels of one unit of attention
Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]

RUN_TOKENS = 1 << 18  # tokens that are converted and hashed at once: they stay in the processor's cache
INT32 = np.iinfo(np.int32)
NOWHERE = np.zeros((0, 3), np.int64)


def document_key(input_ids: Tokens, labels: Tokens) -> bytes:
    """16 bytes that name a document: a digest of its token ids and labels, the first label taken as ignored."""
    ids, targets = _integers(input_ids), _integers(labels).copy()
    _require_same_lengths(np.array([len(ids)]), np.array([len(targets)]))
    targets[:1] = IGNORED  # nothing predicts the first token, and padding-free collation masks its label
    return _key(ids, targets)


def label_positions(labels: Tokens) -> np.ndarray:
    """The positions t ≥ 1 with a label, in order: the rows a cache holds for a document."""
    positions = np.flatnonzero(_integers(labels) != IGNORED)
    return positions[positions > 0]


class Overview(NamedTuple):
    """What a capture and a lookup need to know of every document, without its tokens."""

    keys: np.ndarray  # uint8 [n, 16]
    labels: np.ndarray  # label positions of each
    id_range: tuple[int, int]  # lowest and highest token id, labels included


class Documents(Sequence[Document]):
    """The documents of prepared map-style data sets, one after the other; packed rows are cut into their segments.

    The buffers of a `datasets.Dataset` are read where they lie, usually memory-mapped. Other rows are read into memory
    once, as are those that a collator other than TRL's changes: given here, it collates every row before it is cut.
    """

    def __init__(self, *datasets: Any, collator: Collator | None = None) -> None:
        self.datasets, self.collator = datasets, collator
        self._buffers: list[tuple[np.ndarray, np.ndarray]] = []
        parts = [self._read(dataset) for dataset in datasets]
        # Per document: its buffer, where it starts there, and its length.
        self._buffer, self._start, self.lengths = np.concatenate([NOWHERE, *parts]).T

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        place = slice(self._start[index], self._start[index] + self.lengths[index])
        ids, labels = self._buffers[self._buffer[index]]
        return {"input_ids": ids[place], "labels": labels[place]}

    def tokens(self, index: int) -> np.ndarray:
        """int32 [2,T]: input_ids and labels of a document, the first label ignored as in its key."""
        [(_, ids, labels, _)] = self._runs(np.array([index]))
        return np.stack([ids, labels])

    @cached_property
    def overview(self) -> Overview:
        """Keys and label counts of all documents, in one pass over the tokens."""
        keys, counts = np.zeros((len(self), 16), np.uint8), np.zeros(len(self), np.int64)
        low, high = 0, 0
        # In the order of memory, so that a shuffled data set is read like one that is not.
        for places, ids, labels, bounds in self._runs(np.lexsort((self._start, self._buffer))):
            kept = labels != IGNORED
            counts[places] = np.diff(np.concatenate([[0], np.cumsum(kept)])[bounds])
            targets = labels[kept]
            low = min(low, ids.min(initial=0), targets.min(initial=0))
            high = max(high, ids.max(initial=0), targets.max(initial=0))
            digests = (_key(ids[a:b], labels[a:b]) for a, b in pairwise(bounds.tolist()))
            keys[places] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
        return Overview(keys, counts, (int(low), int(high)))

    @cached_property
    def digest(self) -> str:
        """32 hex digits that name these documents in this order, whatever file, chunk or integer type they lie in."""
        return digest(self.overview.keys.tobytes())

    @cached_property
    def stamp(self) -> str | None:
        """A name that costs no pass over them, of their files (size, time, `datasets`' fingerprint); None without."""
        stamps = [None if self.collator is not None else stamp_of(dataset) for dataset in self.datasets]
        return None if not stamps or None in stamps else digest_json(stamps)

    def _runs(self, order: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        """Neighbours in memory together: places, ids and labels as int32 (each first label ignored), and bounds."""
        buffer, start, length = (column[order] for column in (self._buffer, self._start, self.lengths))
        total = np.cumsum(length)
        apart = (buffer[1:] != buffer[:-1]) | (total[1:] // RUN_TOKENS != total[:-1] // RUN_TOKENS)
        apart |= start[1:] != (start + length)[:-1]
        edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(order)] if len(order) else []
        for first, end in pairwise(edges):
            bounds = np.concatenate([[0], np.cumsum(length[first:end])])
            place = slice(start[first], start[first] + bounds[-1])
            ids, labels = (_int32(flat[place]) for flat in self._buffers[buffer[first]])
            labels = labels.copy()
            labels[bounds[:-1][length[first:end] > 0]] = IGNORED
            yield order[first:end], ids, labels, bounds

    def _read(self, dataset: Any) -> np.ndarray:
        table = None if self.collator is not None else token_table(dataset)
        if table is None:
            return self._read_rows(dataset)
        batches = [self._read_batch(batch) for batch in table.to_batches()]
        places = np.concatenate([NOWHERE, *(places for places, _ in batches)])
        if dataset._indices is None:
            return places
        # Row r holds count[r] documents; the data set is some of its rows in some order.
        rows = dataset._indices.column(0).to_numpy().astype(np.int64)
        count = np.concatenate([np.zeros(0, np.int64), *(count for _, count in batches)])
        first, chosen = np.cumsum(count) - count, count[rows]
        within = np.arange(chosen.sum()) - np.repeat(np.cumsum(chosen) - chosen, chosen)
        return places[np.repeat(first[rows], chosen) + within]

    def _read_batch(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Places of the documents of an Arrow record batch, and how many each row holds."""
        ids, offsets = _flat(batch.column("input_ids"))
        labels, other = _flat(batch.column("labels")) if "labels" in batch.schema.names else (ids, offsets)
        lengths = np.diff(offsets)
        _require_same_lengths(lengths, np.diff(other))
        count = np.ones(len(lengths), np.int64)
        if "seq_lengths" in batch.schema.names:
            segments, ends = _flat(batch.column("seq_lengths"))
            count, rows = np.diff(ends), lengths
            lengths = segments[ends[0] : ends[-1]].astype(np.int64)
            sums = np.diff(np.concatenate([[0], np.cumsum(lengths)])[ends - ends[0]])
            for row in np.flatnonzero(sums != rows)[:1]:
                raise ValueError(f"a packed row has {rows[row]} tokens, but its seq_lengths add up to {sums[row]}.")
        return self._add(ids[offsets[0] :], labels[other[0] :], lengths), count

    def _read_rows(self, rows: Iterable[Mapping[str, Any]]) -> np.ndarray:
        cut = split if self.collator is None else lambda row: collated(row, self.collator)  # type: ignore[arg-type]
        documents = [document for row in rows for document in cut(row)]
        ids, labels = ([_integers(document[name]) for document in documents] for name in ("input_ids", "labels"))
        lengths, others = (np.array([len(part) for part in parts], np.int64) for parts in (ids, labels))
        _require_same_lengths(lengths, others)
        empty = [np.zeros(0, np.int32)]
        return self._add(np.concatenate(ids or empty), np.concatenate(labels or empty), lengths)

    def _add(self, ids: np.ndarray, labels: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The places of documents of these lengths, one after the other in a new buffer."""
        self._buffers.append((ids, labels))
        buffer = np.full(len(lengths), len(self._buffers) - 1)
        return np.stack([buffer, np.cumsum(lengths) - lengths, lengths], axis=1)


def check_token_ids(documents: Documents, vocab_size: int, shared_ids: int | None = None) -> None:
    """Raise ValueError if a document holds a token that the teacher does not know.

    Args:
        vocab_size: vocabulary entries of the teacher's head.
        shared_ids: the number of ids, from 0 on, that the teacher's tokenizer shares with the one of the data.
    """
    low, high = documents.overview.id_range
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"the data set holds the token id {low if low < 0 else high}, but the teacher's vocabulary has "
            f"{vocab_size} entries (0 to {vocab_size - 1}). Tokenize the data with the teacher's tokenizer."
        )
    if shared_ids is not None and high >= shared_ids:
        raise ValueError(
            f"the data set uses the token id {high}, which was added to its tokenizer: the teacher's tokenizer ends at "
            f"{shared_ids - 1}. An added token may pad a batch, but must not occur in a document."
        )


def split(row: Mapping[str, Any]) -> list[Document]:
    """The documents of one prepared row. Without labels every token is one, as in TRL's collator."""
    input_ids = np.asarray(row["input_ids"])
    labels = np.asarray(row["labels"]) if row.get("labels") is not None else input_ids
    lengths = row.get("seq_lengths")
    ends = np.cumsum([len(input_ids)] if lengths is None else lengths)
    return [
        {"input_ids": input_ids[start:end], "labels": labels[start:end]} for start, end in zip([0, *ends[:-1]], ends)
    ]


def collated(row: Mapping[str, Any], collator: Collator) -> list[Document]:
    """The documents of one row as `collator` hands them to the model."""
    batch = collator([dict(row)])
    pieces = [(span.row, slice(span.start, span.stop)) for span in spans(batch, [row])]
    return [{name: batch[name][piece].numpy() for name in ("input_ids", "labels")} for piece in pieces]


class Span(NamedTuple):
    """Where a document lies in a batch: columns start:stop of a row."""

    row: int
    start: int
    stop: int


def spans(batch: Mapping[str, Any], features: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Where the documents lie in the batch that a collator made of `features`, row by row, left to right.

    Padding-free batches restart their positions at each document. Padded batches hold one document per row; the
    attention mask says where, on whichever side the padding is.
    """
    rows, length = batch["input_ids"].shape
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    if mask is not None:
        real = [row.nonzero().flatten() for row in mask]
        return [Span(row, int(at[0]), int(at[-1]) + 1) if len(at) else Span(row, 0, 0) for row, at in enumerate(real)]
    if positions is not None:
        # Padding to a multiple repeats position 0: those tokens become documents of length one, which have no labels.
        edges = [[*(row == 0).nonzero().flatten().tolist(), length] for row in positions]
        return [Span(row, *pair) for row, starts in enumerate(edges) for pair in pairwise(starts)]
    return [Span(row, 0, min(len(features[row]["input_ids"]), length)) for row in range(rows)]


def document_index(batch: Mapping[str, Any], where: Sequence[Span]) -> Tensor:
    """Int64[B, T]: the number of the document each token belongs to, −1 for padding."""
    index = torch.full(batch["input_ids"].shape, -1, dtype=torch.int64)
    for number, span in enumerate(where):
        index[span.row, span.start : span.stop] = number
    return index


def _key(ids: np.ndarray, labels: np.ndarray) -> bytes:
    state = hashlib.blake2b(ids.data, digest_size=16, person=b"qsft document")
    state.update(labels.data)
    return state.digest()


def _integers(values: Tokens) -> np.ndarray:
    """One dimension of int32, whatever came in."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    array = np.asarray(values, dtype=np.int32 if len(values) == 0 else None)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"a document's tokens must be a list of integers, not {array.dtype} of shape {array.shape}.")
    return _int32(array)


def _int32(array: np.ndarray) -> np.ndarray:
    """The same integers in 32 bits; beyond them two documents would share a key, so they are refused."""
    if array.dtype.itemsize > 4 or array.dtype == np.uint32:
        low, high = array.min(initial=0), array.max(initial=0)
        if low < INT32.min or high > INT32.max:
            raise ValueError(f"a document holds the token id {high if high > INT32.max else low}, which no model has.")
    return np.ascontiguousarray(array, dtype="<i4")


def _require_same_lengths(ids: np.ndarray, labels: np.ndarray) -> None:
    for i in np.flatnonzero(ids != labels)[:1]:
        raise ValueError(f"a document has {ids[i]} input_ids and {labels[i]} labels; each token must have one label.")


def token_table(dataset: Any) -> Any:
    """The token columns of a `datasets.Dataset` as an Arrow table; None where rows are not what the table holds."""
    from datasets import Dataset
    from pyarrow import types

    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom":
        return None
    names = [name for name in ("input_ids", "labels", "seq_lengths") if name in dataset.column_names]
    table = dataset.data.table.select(names)
    for column in table.columns:
        is_list = types.is_list(column.type) or types.is_large_list(column.type)
        if not is_list or not types.is_integer(column.type.value_type) or column.null_count:
            return None
        if any(chunk.values.null_count for chunk in column.chunks):
            return None
    return table


def stamp_of(dataset: Any) -> list[Any] | None:
    """Fingerprint, rows and files of a memory-mapped `datasets.Dataset`."""
    from datasets.table import ConcatenationTable, MemoryMappedTable

    if token_table(dataset) is None:
        return None
    blocks = [dataset.data]
    if isinstance(dataset.data, ConcatenationTable):
        blocks = [block for row in dataset.data.blocks for block in row]
    if not all(isinstance(block, MemoryMappedTable) for block in blocks):
        return None
    files = [(file["filename"], os.stat(file["filename"])) for file in dataset.cache_files]
    return [dataset._fingerprint, len(dataset), [[name, stat.st_size, stat.st_mtime_ns] for name, stat in files]]


def _flat(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values of a list column, not copied, and where each row starts and the last one ends."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy().astype(np.int64)
