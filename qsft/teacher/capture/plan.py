"""Which documents a capture computes, in which batches, by which replica of the teacher.

A batch's padding changes the rounding of its log-probs. Batches are therefore planned from all documents of the data
set, sorted by key, before anything is computed: a capture that was killed, or that ran on another number of processes,
gives bit-equal results. The plan also decides which replica computes a document.
"""

from dataclasses import dataclass

import numpy as np

from qsft.teacher.documents import Documents
from qsft.teacher.sources.source import Replica


@dataclass(frozen=True)
class Plan:
    """The distinct documents that have labels, sorted by key, and their batches.

    documents      the data set
    batch_tokens   tokens of a batch at most, padding included
    keys           uint8 [n, 16]
    index          where each of them stands in `documents`
    label_counts   label positions of each
    lengths        tokens of each
    batches        arrays of places in `keys`
    """

    documents: Documents
    batch_tokens: int
    keys: np.ndarray
    index: np.ndarray
    label_counts: np.ndarray
    lengths: np.ndarray
    batches: list[np.ndarray]

    @classmethod
    def of(cls, documents: Documents, batch_tokens: int) -> "Plan":
        """Plan the capture of a data set; ValueError when no document has a label."""
        keys = documents.overview.keys
        label_counts = documents.overview.label_counts
        with_labels = np.flatnonzero(label_counts)
        if not len(with_labels):
            raise ValueError(
                "no document of the data set has a label after its first token, so there is nothing to capture. Check "
                "that `labels` is not −100 everywhere (a prompt template or a completion mask that hides the answer)."
            )
        _, first_copies = np.unique(keys[with_labels].view("S16")[:, 0], return_index=True)
        index = with_labels[first_copies]
        lengths = documents.lengths[index]
        return cls(
            documents=documents,
            batch_tokens=batch_tokens,
            keys=keys[index],
            index=index,
            label_counts=label_counts[index],
            lengths=lengths,
            batches=plan_batches(lengths, batch_tokens),
        )

    def batches_of(self, replica: Replica, missing: np.ndarray) -> list[np.ndarray]:
        """The batches that a replica computes for the `missing` documents (a mask over `keys`), and nothing else.

        Batches of which every document is missing stay as planned. The missing documents of the others (new documents
        beside known ones) form new batches, so that data added to a large cache cost what they hold.
        """
        own = self.batches[replica.index :: replica.count]
        untouched = [batch for batch in own if missing[batch].all()]
        partly_missing = [batch[missing[batch]] for batch in own if not missing[batch].all()]
        if not partly_missing:
            return untouched
        rest = np.concatenate(partly_missing)
        return untouched + [rest[places] for places in plan_batches(self.lengths[rest], self.batch_tokens)]

    def owners(self, replicas: int) -> np.ndarray:
        """The index of the replica that computes each document."""
        owners = np.zeros(len(self.keys), np.int64)
        for number, batch in enumerate(self.batches):
            owners[batch] = number % replicas
        return owners


def plan_batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Group documents by length into batches of at most `batch_tokens` tokens including padding, longest first.

    A batch that does not fit into memory then fails at once, not after hours.
    """
    order = np.argsort(-lengths, kind="stable")
    batches = []
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        size = max(1, batch_tokens // longest)
        batches.append(order[start : start + size])
        start += size
    return batches
