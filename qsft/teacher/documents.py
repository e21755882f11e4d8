"""What a document is, after TRL's preparation: in a row of a data set, and in a collated batch.

A document is a unit of attention: an unpacked row, or one segment of a packed row (`seq_lengths`). The cache is keyed
by a document's tokens, so both readings must agree; a test compares them for every way TRL arranges data.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Document = dict[str, np.ndarray]  # input_ids and labels of one unit of attention
Collator = Callable[[list[dict[str, Any]]], dict[str, Any]]


class Span(NamedTuple):
    """Where a document lies in a batch: columns start:stop of a row."""

    row: int
    start: int
    stop: int


class Documents(Sequence[Document]):
    """The documents of prepared map-style data sets, one after the other; packed rows are cut into their segments.

    Rows are read when asked for. A collator other than TRL's may change tokens or labels: given here, it collates
    every row before it is cut.
    """

    def __init__(self, *datasets: Any, collator: Collator | None = None) -> None:
        self.datasets = datasets
        self.collator = collator
        self.places = [
            (number, row, nth)
            for number, dataset in enumerate(datasets)
            for row, count in enumerate(self._counts(dataset))
            for nth in range(count)
        ]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Any) -> Any:
        number, row, nth = self.places[index]
        return self.split(self.datasets[number][row])[nth]

    def __iter__(self) -> Iterator[Document]:
        for dataset in self.datasets:
            for row in dataset:
                yield from self.split(row)

    def split(self, row: Mapping[str, Any]) -> list[Document]:
        """The documents of one row, as the model will see them."""
        return split(row) if self.collator is None else collated(row, self.collator)

    def _counts(self, dataset: Any) -> Iterator[int]:
        """How many documents each row holds."""
        if self.collator is not None:
            return (len(self.split(row)) for row in dataset)
        if "seq_lengths" not in dataset.column_names:
            return iter([1] * len(dataset))
        return (len(lengths) for lengths in dataset["seq_lengths"])


def split(row: Mapping[str, Any]) -> list[Document]:
    """The documents of one prepared row. Without labels every token is one, as in TRL's collator."""
    input_ids = np.asarray(row["input_ids"], dtype=np.int64)
    labels = np.asarray(row["labels"], dtype=np.int64) if row.get("labels") is not None else input_ids
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


def spans(batch: Mapping[str, Any], features: Sequence[Mapping[str, Any]]) -> list[Span]:
    """Where the documents lie in the batch that a collator made of `features`, row by row, left to right.

    Padding-free batches restart their positions at each document. Padded batches hold one document per row; the
    attention mask says where, on whichever side the padding is.
    """
    rows, length = batch["input_ids"].shape
    mask, positions = batch.get("attention_mask"), batch.get("position_ids")
    if mask is not None:
        return [Span(row, *_extent(mask[row])) for row in range(rows)]
    if positions is not None:
        return [span for row in range(rows) for span in _segments(row, positions[row])]
    return [Span(row, 0, min(len(features[row]["input_ids"]), length)) for row in range(rows)]


def _extent(mask: Tensor) -> tuple[int, int]:
    real = mask.nonzero().flatten()
    return (int(real[0]), int(real[-1]) + 1) if len(real) else (0, 0)


def _segments(row: int, positions: Tensor) -> list[Span]:
    starts = (positions == 0).nonzero().flatten().tolist()
    # Padding to a multiple repeats position 0: those tokens become documents of length one, which have no labels.
    return [Span(row, start, stop) for start, stop in zip(starts, [*starts[1:], len(positions)])]


def document_index(batch: Mapping[str, Any], where: Sequence[Span]) -> Tensor:
    """Int64[B, T]: the number of the document each token belongs to, −1 for padding."""
    index = torch.full(batch["input_ids"].shape, -1, dtype=torch.int64)
    for number, span in enumerate(where):
        index[span.row, span.start : span.stop] = number
    return index
