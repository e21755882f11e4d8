"""Which documents a capture holds, and in which batches they are computed.

A batch's padding changes the rounding of its rows. So batches are planned from all documents of the data set, sorted,
before anything is computed, and a batch is computed whole when one of its documents is missing: a capture that was
killed, or that ran on another number of processes, comes out bit-equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qsft.targets.view import IGNORED
from qsft.teacher.format import TeacherCache, document_key, label_positions, numpy_documents


@dataclass(frozen=True)
class Plan:
    """The distinct documents with labels, by key, and their batches (each a list of places in `keys`)."""

    dataset: Sequence[Mapping[str, Any]]
    keys: list[bytes]
    index: np.ndarray  # row of the data set
    lengths: np.ndarray
    labels: np.ndarray  # label positions of each
    batches: list[np.ndarray]
    id_range: tuple[int, int]

    def missing(self, cache: TeacherCache | None) -> np.ndarray:
        """Which documents `cache` lacks, as a mask over `keys`."""
        return np.array([cache is None or key not in cache for key in self.keys])

    def tokens(self, place: int) -> np.ndarray:
        """int32 [2,T]: input_ids and labels of a document, the first label ignored as in its key."""
        row = self.dataset[int(self.index[place])]
        tokens = np.array([row["input_ids"], row["labels"]], dtype=np.int32)
        tokens[1, 0] = IGNORED
        return tokens

    def check_ids(self, vocab_size: int) -> None:
        """ValueError when a document holds an id the teacher has no embedding for."""
        low, high = self.id_range
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"the data set holds the token id {high if high >= vocab_size else low}, but the teacher's vocabulary "
                f"has {vocab_size} entries (0 to {vocab_size - 1}). Tokenise the data with the teacher's tokenizer."
            )


def plan_capture(dataset: Sequence[Mapping[str, Any]], batch_tokens: int) -> Plan:
    """The plan for a data set with `input_ids` and `labels`; duplicates are captured once."""
    found: dict[bytes, tuple[int, int, int]] = {}
    low, high = 0, 0
    documents = numpy_documents(dataset if hasattr(dataset, "__getitem__") else list(dataset))
    for row, document in enumerate(documents):
        ids, labels = document["input_ids"], document["labels"]
        positions = label_positions(labels)
        if not len(positions):
            continue
        found.setdefault(document_key(ids, labels), (row, len(ids), len(positions)))
        targets = np.asarray(labels)[positions]
        low, high = min(low, np.min(ids), targets.min()), max(high, np.max(ids), targets.max())
    if not found:
        raise ValueError(
            "no document of the data set has a label after its first token, so there is nothing to capture. "
            "Check that `labels` is not −100 everywhere (a prompt template or a completion mask that hides the answer)."
        )
    keys = sorted(found)
    index, lengths, counts = np.array([found[key] for key in keys]).T
    return Plan(documents, keys, index, lengths, counts, plan_batches(lengths, batch_tokens), (int(low), int(high)))


def plan_batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Places grouped by length, longest first, with at most `batch_tokens` tokens including padding in a batch.

    The longest come first so that a batch that does not fit the memory fails at the start, not after hours.
    """
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        size = max(1, int(batch_tokens // lengths[order[start]]))
        batches.append(order[start : start + size])
        start += size
    return batches


def pad_documents(documents: list[np.ndarray]) -> dict[str, Tensor]:
    """Documents [2,T] as one batch, padded on the right."""
    width = max(document.shape[1] for document in documents)
    batch = torch.zeros(3, len(documents), width, dtype=torch.long)
    batch[1] = IGNORED
    for row, document in enumerate(documents):
        batch[:2, row, : document.shape[1]] = torch.from_numpy(document.astype(np.int64))
        batch[2, row, : document.shape[1]] = 1
    return {"input_ids": batch[0], "labels": batch[1], "attention_mask": batch[2]}
