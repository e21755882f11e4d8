"""Which documents a capture computes, in which batches, by which of its processes.

A batch's padding changes the rounding of its log-probs. Batches are therefore planned from all documents of the data
set, sorted by key, before anything is computed: a capture that was killed, or that ran on another number of processes,
gives bit-equal results. The plan also decides which process computes a document.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from qsft.processes import rank, world_size
from qsft.targets.view import IGNORED
from qsft.teacher.capture.timing import DATA, Pace
from qsft.teacher.documents import Documents

READY_BATCHES = 2  # padded, not yet computed
Ready = tuple[np.ndarray, list[np.ndarray], dict[str, Tensor]]  # a batch, its documents [2,T], all as padded tensors


class Plan:
    """The distinct documents with labels, by key, and their batches (each an array of places in `keys`)."""

    def __init__(self, documents: Documents, batch_tokens: int) -> None:
        keys, labels, _ = documents.overview
        labelled = np.flatnonzero(labels)
        if not len(labelled):
            raise ValueError(
                "no document of the data set has a label after its first token, so there is nothing to capture. Check "
                "that `labels` is not −100 everywhere (a prompt template or a completion mask that hides the answer)."
            )
        _, first = np.unique(keys[labelled].view("S16")[:, 0], return_index=True)
        self.documents, self.batch_tokens, self.index = documents, batch_tokens, labelled[first]
        self.keys, self.labels, self.lengths = (a[self.index] for a in (keys, labels, documents.lengths))
        self.batches = plan_batches(self.lengths, batch_tokens)

    def left(self, missing: np.ndarray) -> list[np.ndarray]:
        """The batches of this process that hold what is `missing` (a mask over `keys`), and nothing else.

        Those of which nothing is there stay as planned. The rest of the others (new documents beside known ones) is
        put together: data added to a large cache cost what they hold, not a pass over everything.
        """
        mine = [(batch, missing[batch]) for batch in self.batches[rank() :: world_size()]]
        rest = np.concatenate([self.index[:0], *(batch[lacks] for batch, lacks in mine if not lacks.all())])
        added = plan_batches(self.lengths[rest], self.batch_tokens)
        return [batch for batch, lacks in mine if lacks.all()] + [rest[places] for places in added]


def plan_batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Places grouped by length, longest first, with at most `batch_tokens` tokens including padding in a batch."""
    order = np.argsort(-lengths, kind="stable")  # a batch that does not fit the memory fails first, not after hours
    batches, start = [], 0
    while start < len(order):
        size = max(1, int(batch_tokens // lengths[order[start]]))
        batches.append(order[start : start + size])
        start += size
    return batches


def ready_batches(plan: Plan, batches: Sequence[np.ndarray], pace: Pace) -> Iterator[Ready]:
    """The batches, each made ready in a thread while the one before is computed."""

    def make(batch: np.ndarray) -> Ready:
        documents = [plan.documents.tokens(index) for index in plan.index[batch].tolist()]
        return batch, documents, pad_documents(documents)

    with ThreadPoolExecutor(1, "teacher batches") as thread:
        ahead = [thread.submit(make, batch) for batch in batches[:READY_BATCHES]]
        for end in range(READY_BATCHES, READY_BATCHES + len(batches)):
            ahead += [thread.submit(make, batch) for batch in batches[end : end + 1]]
            with pace.waiting(DATA):
                ready = ahead.pop(0).result()
            yield ready


def pad_documents(documents: list[np.ndarray]) -> dict[str, Tensor]:
    """Documents [2,T] as one batch, padded on the right."""
    width = max(document.shape[1] for document in documents)
    batch = np.zeros((3, len(documents), width), np.int64)
    batch[1] = IGNORED
    for row, document in enumerate(documents):
        batch[:2, row, : document.shape[1]] = document
        batch[2, row, : document.shape[1]] = 1
    return dict(zip(("input_ids", "labels", "attention_mask"), torch.from_numpy(batch)))
