"""What a document is after TRL's preparation, in a data set and in a collated batch, and the key that names it.

A document is a unit of attention: an unpacked example, or one segment of a packed example (`seq_lengths`). A cache is
keyed by a document's tokens, so both readings must agree; a test compares them for every way TRL arranges data.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from qsft.fingerprints import digest, digest_json
from qsft.targets.view import IGNORED
from qsft.validation import counted

Tokens = Any  # a list, a numpy array or a tensor of integers
Document = dict[str, np.ndarray]  # input_ids and labels of one unit of attention
Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]

GROUP_TOKENS = 1 << 18  # tokens that are converted and hashed at once: they stay in the processor's cache
INT32 = np.iinfo(np.int32)
NO_DOCUMENTS = np.zeros((0, 3), np.int64)
FILE_FORMATS = ("arrow", "csv", "generator", "json", "pandas", "parquet", "text")  # that `datasets` gives as a name


def document_key(input_ids: Tokens, labels: Tokens) -> bytes:
    """Return 16 bytes that name a document: a digest of its token ids and labels, the first label taken as ignored."""
    ids = _integers(input_ids)
    targets = _integers(labels).copy()
    _check_same_lengths(np.array([len(ids)]), np.array([len(targets)]))
    targets[:1] = IGNORED  # nothing predicts the first token, and padding-free collation masks its label
    return _key(ids, targets)


def label_positions(labels: Tokens) -> np.ndarray:
    """The positions t ≥ 1 with a label, in order: those for which a cache holds log-probs."""
    positions = np.flatnonzero(_integers(labels) != IGNORED)
    return positions[positions > 0]


class Overview(NamedTuple):
    """What a capture and a lookup need to know of every document, without its tokens."""

    keys: np.ndarray  # uint8 [n, 16]
    label_counts: np.ndarray  # number of label positions of each
    id_range: tuple[int, int]  # lowest and highest token id, labels included


class DocumentGroup(NamedTuple):
    """Documents that are neighbors in memory, as int32; each document's first label is ignored."""

    indices: np.ndarray  # of the documents
    ids: np.ndarray
    labels: np.ndarray
    bounds: np.ndarray  # where each document starts in `ids`, and the last one ends

    @property
    def id_range(self) -> tuple[int, int]:
        """The lowest and highest token id, labels included; 0 if there is none below or above it."""
        targets = self.labels[self.labels != IGNORED]
        low = min(self.ids.min(initial=0), targets.min(initial=0))
        high = max(self.ids.max(initial=0), targets.max(initial=0))
        return int(low), int(high)


class Documents(Sequence[Document]):
    """The documents of prepared map-style data sets, one after the other; packed examples are split into segments.

    The buffers of a `datasets.Dataset` are read in place, usually memory-mapped. Other data sets are read into memory
    once, as are those that a collator other than TRL's changes.

    Args:
        collator: collates every example before it is split, where it is not TRL's.
    """

    def __init__(self, *datasets: Any, collator: Collator | None = None) -> None:
        self.datasets = datasets
        self.collator = collator
        self._buffers: list[tuple[np.ndarray, np.ndarray]] = []
        places = np.concatenate([NO_DOCUMENTS, *(self._read(dataset) for dataset in datasets)])
        # Per document: its buffer, where it starts there, and its length.
        self._buffer, self._start, self.lengths = places.T

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> Any:
        tokens = slice(self._start[index], self._start[index] + self.lengths[index])
        ids, labels = self._buffers[self._buffer[index]]
        return {"input_ids": ids[tokens], "labels": labels[tokens]}

    def tokens(self, index: int) -> np.ndarray:
        """int32 [2, T]: input_ids and labels of a document, the first label ignored as in its key."""
        [group] = self._groups(np.array([index]))
        return np.stack([group.ids, group.labels])

    @cached_property
    def overview(self) -> Overview:
        """Keys and label counts of all documents, in one pass over the tokens."""
        keys = np.zeros((len(self), 16), np.uint8)
        counts = np.zeros(len(self), np.int64)
        ranges = [(0, 0)]
        for group in self._groups(self._memory_order()):
            labels_before = np.concatenate([[0], np.cumsum(group.labels != IGNORED)])
            counts[group.indices] = np.diff(labels_before[group.bounds])
            ranges.append(group.id_range)
            bounds = pairwise(group.bounds.tolist())
            digests = [_key(group.ids[start:end], group.labels[start:end]) for start, end in bounds]
            keys[group.indices] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16)
        return Overview(keys, counts, _span(ranges))

    @cached_property
    def id_range(self) -> tuple[int, int]:
        """The lowest and highest token id, labels included; cheaper than `overview`, which has it as well."""
        if "overview" in self.__dict__:
            return self.overview.id_range
        return _span([(0, 0), *(group.id_range for group in self._groups(self._memory_order()))])

    @cached_property
    def digest(self) -> str:
        """32 hex digits that name these documents in this order, whatever file, chunk or integer type they lie in."""
        return digest(self.overview.keys.tobytes())

    @cached_property
    def stamp(self) -> str | None:
        """A digest of their files (size, time, `datasets`' fingerprint), without a pass over the tokens.

        None where documents do not come from files, or a collator changes them.
        """
        if self.collator is not None or not self.datasets:
            return None
        stamps = [stamp_of(dataset) for dataset in self.datasets]
        return None if None in stamps else digest_json(stamps)

    @property
    def description(self) -> str:
        """The names of the data sets, as far as they are known."""
        return ", ".join(describe_dataset(dataset) for dataset in self.datasets) or "no data set"

    def _memory_order(self) -> np.ndarray:
        """The documents in the order of memory, so that a shuffled data set is read as fast as one that is not."""
        return np.lexsort((self._start, self._buffer))

    def _groups(self, order: np.ndarray) -> Iterator[DocumentGroup]:
        """Yield the documents in this order, those that are neighbors in memory together."""
        if not len(order):
            return
        buffer = self._buffer[order]
        start = self._start[order]
        length = self.lengths[order]
        total = np.cumsum(length)
        other_buffer = buffer[1:] != buffer[:-1]
        not_adjacent = start[1:] != (start + length)[:-1]
        is_full = total[1:] // GROUP_TOKENS != total[:-1] // GROUP_TOKENS
        edges = np.flatnonzero(other_buffer | not_adjacent | is_full) + 1
        for first, end in pairwise([0, *edges.tolist(), len(order)]):
            bounds = np.concatenate([[0], np.cumsum(length[first:end])])
            tokens = slice(start[first], start[first] + bounds[-1])
            flat_ids, flat_labels = self._buffers[buffer[first]]
            ids = _int32(flat_ids[tokens])
            labels = _int32(flat_labels[tokens]).copy()
            labels[bounds[:-1][length[first:end] > 0]] = IGNORED
            yield DocumentGroup(order[first:end], ids, labels, bounds)

    def _read(self, dataset: Any) -> np.ndarray:
        """Add the documents of a data set; (buffer, start, length) of each."""
        _check_tokenized(getattr(dataset, "column_names", None))
        table = None if self.collator is not None else token_table(dataset)
        if table is None:
            return self._read_examples(dataset)
        batches = [self._read_batch(batch) for batch in table.to_batches()]
        places = np.concatenate([NO_DOCUMENTS, *(places for places, _ in batches)])
        if dataset._indices is None:
            return places
        # The data set is a selection of the table's examples; example e holds counts[e] documents.
        examples = dataset._indices.column(0).to_numpy().astype(np.int64)
        counts = np.concatenate([np.zeros(0, np.int64), *(count for _, count in batches)])
        first_documents = np.cumsum(counts) - counts
        selected = counts[examples]
        within_example = np.arange(selected.sum()) - np.repeat(np.cumsum(selected) - selected, selected)
        return places[np.repeat(first_documents[examples], selected) + within_example]

    def _read_batch(self, batch: Any) -> tuple[np.ndarray, np.ndarray]:
        """Places of the documents of an Arrow record batch, and how many each example holds."""
        ids, id_offsets = _flat(batch.column("input_ids"))
        labels, label_offsets = ids, id_offsets
        if "labels" in batch.schema.names:
            labels, label_offsets = _flat(batch.column("labels"))
        lengths = np.diff(id_offsets)
        _check_same_lengths(lengths, np.diff(label_offsets))
        counts = np.ones(len(lengths), np.int64)
        if "seq_lengths" in batch.schema.names:
            segments, ends = _flat(batch.column("seq_lengths"))
            counts = np.diff(ends)
            segment_lengths = segments[ends[0] : ends[-1]].astype(np.int64)
            sums = np.diff(np.concatenate([[0], np.cumsum(segment_lengths)])[ends - ends[0]])
            wrong = np.flatnonzero(sums != lengths)
            if len(wrong):
                first = wrong[0]
                raise ValueError(
                    f"a packed example has {lengths[first]} tokens, but its seq_lengths add up to {sums[first]}. "
                    "Pack the data set again."
                )
            lengths = segment_lengths
        return self._add(ids[id_offsets[0] :], labels[label_offsets[0] :], lengths), counts

    def _read_examples(self, examples: Iterable[Mapping[str, Any]]) -> np.ndarray:
        documents: list[Document] = []
        for example in examples:
            _check_tokenized(example)
            documents += split(example) if self.collator is None else collated(example, self.collator)
        ids = [_integers(document["input_ids"]) for document in documents]
        labels = [_integers(document["labels"]) for document in documents]
        lengths = np.array([len(part) for part in ids], np.int64)
        _check_same_lengths(lengths, np.array([len(part) for part in labels], np.int64))
        none = [np.zeros(0, np.int32)]
        return self._add(np.concatenate(ids or none), np.concatenate(labels or none), lengths)

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
    low, high = documents.id_range
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


def split(example: Mapping[str, Any]) -> list[Document]:
    """The documents of one prepared example. Without labels every token is one, as in TRL's collator."""
    input_ids = np.asarray(example["input_ids"])
    labels = np.asarray(example["labels"]) if example.get("labels") is not None else input_ids
    lengths = example.get("seq_lengths")
    ends = np.cumsum([len(input_ids)] if lengths is None else lengths).tolist()
    return [{"input_ids": input_ids[start:end], "labels": labels[start:end]} for start, end in pairwise([0, *ends])]


def collated(example: Mapping[str, Any], collator: Collator) -> list[Document]:
    """The documents of one example as `collator` passes them to the model."""
    batch = collator([dict(example)])
    documents = []
    for row, start, stop in spans(batch, [example]):
        ids = batch["input_ids"][row, start:stop].numpy()
        labels = batch["labels"][row, start:stop].numpy()
        documents.append({"input_ids": ids, "labels": labels})
    return documents


class Span(NamedTuple):
    """Where a document lies in a batch: columns start to stop of a row of its tensors."""

    row: int
    start: int
    stop: int


def spans(batch: Mapping[str, Any], features: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Where the documents lie in the batch that a collator made of `features`, row by row, left to right.

    Padding-free batches restart their positions at each document. Padded batches hold one document per row; the
    attention mask says where, on whichever side the padding is.
    """
    rows, length = batch["input_ids"].shape
    mask = batch.get("attention_mask")
    position_ids = batch.get("position_ids")
    found = []
    if mask is not None:
        for row in range(rows):
            attended = mask[row].nonzero().flatten()
            found.append(Span(row, int(attended[0]), int(attended[-1]) + 1) if len(attended) else Span(row, 0, 0))
    elif position_ids is not None:
        for row in range(rows):
            # Padding to a multiple repeats position 0: those tokens become documents of length one, without labels.
            starts = (position_ids[row] == 0).nonzero().flatten().tolist()
            found += [Span(row, start, stop) for start, stop in pairwise([*starts, length])]
    else:
        for row in range(rows):
            found.append(Span(row, 0, min(len(features[row]["input_ids"]), length)))
    return found


def document_index(batch: Mapping[str, Any], where: Sequence[Span]) -> Tensor:
    """Int64[B, T]: the number of the document each token belongs to, −1 for padding."""
    index = torch.full(batch["input_ids"].shape, -1, dtype=torch.int64)
    for number, span in enumerate(where):
        index[span.row, span.start : span.stop] = number
    return index


def _span(ranges: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The range that covers all ranges."""
    lows, highs = zip(*ranges)
    return min(lows), max(highs)


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
    """The same integers in 32 bits; ValueError for larger ones, which would give two documents the same key."""
    if array.dtype.itemsize > 4 or array.dtype == np.uint32:
        low, high = array.min(initial=0), array.max(initial=0)
        if low < INT32.min or high > INT32.max:
            invalid = high if high > INT32.max else low
            raise ValueError(f"a document holds the token id {invalid}, which no model has.")
    return np.ascontiguousarray(array, dtype="<i4")


def _check_tokenized(columns: Collection[str] | None) -> None:
    if columns and "input_ids" not in columns:
        raise ValueError(
            f"the data set has the columns {', '.join(columns)}, but not input_ids. Tokenize it first, or let "
            "TargetSFTTrainer or `qsft cache build` do it."
        )


def _check_same_lengths(ids: np.ndarray, labels: np.ndarray) -> None:
    differing = np.flatnonzero(ids != labels)
    if len(differing):
        first = differing[0]
        raise ValueError(
            f"a document has {ids[first]} input_ids and {labels[first]} labels; each token must have one label."
        )


def token_table(dataset: Any) -> Any:
    """The token columns of a `datasets.Dataset` as an Arrow table; None where examples are not what the table holds."""
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
    """Fingerprint, length and files of a memory-mapped `datasets.Dataset`; None for any other data."""
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


def describe_dataset(dataset: Any) -> str:
    """A name for a data set: its Hub name and split, its directory, or its length."""
    info = getattr(dataset, "info", None)
    name = getattr(info, "dataset_name", None)
    split = f" ({dataset.split})" if getattr(dataset, "split", None) is not None else ""
    if name and name not in FILE_FORMATS:
        return f"{name}{split}"
    files = getattr(dataset, "cache_files", None)
    if files:
        return f"{Path(files[0]['filename']).parent}{split}"
    return counted(len(dataset), "example")


def _flat(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values of a list column, not copied, and where each example starts and the last one ends."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy().astype(np.int64)
