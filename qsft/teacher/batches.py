"""Which documents a capture computes, in which batches; and how the processes that divide them find each other.

A batch's padding changes the rounding of its rows. So batches are planned from all documents of the data set, sorted,
before anything is computed, and a batch is computed whole when one of its documents is missing: a capture that was
killed, or that ran on another number of processes, comes out bit-equal. Processes (as torchrun and `accelerate launch`
start them) meet in the cache's directory, never in a collective that could time out.
"""

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qsft.files import publish
from qsft.fingerprints import digest_json
from qsft.processes import is_main, rank, world_size
from qsft.targets.view import IGNORED
from qsft.teacher.documents import Documents
from qsft.teacher.lookup import TeacherCache
from qsft.teacher.pace import DATA, Pace
from qsft.teacher.shards import Shard, published

READY_BATCHES = 2  # padded in a thread while the teacher computes
SHORTEST_WAIT, LONGEST_WAIT = 0.2, 5.0  # between two looks at the directory, seconds
MEETING_SECONDS = 180.0
ONE_FILE_SYSTEM = "all nodes must see this directory on a file system they share"
Padded = tuple[list[np.ndarray], dict[str, Tensor]]  # each document's tokens, and all as one batch of tensors


@dataclass(frozen=True)
class Plan:
    """The distinct documents with labels, by key, and their batches (each a list of places in `keys`)."""

    documents: Documents
    keys: np.ndarray  # uint8 [n,16], sorted
    index: np.ndarray  # the document of each
    lengths: np.ndarray
    labels: np.ndarray  # label positions of each
    batches: list[np.ndarray]
    id_range: tuple[int, int]

    def missing(self, cache: TeacherCache | None) -> np.ndarray:
        """Which documents `cache` lacks, as a mask over `keys`."""
        return np.ones(len(self.keys), bool) if cache is None else cache.absent(self.keys)

    def tokens(self, place: int) -> np.ndarray:
        """int32 [2,T]: input_ids and labels of a document, the first label ignored as in its key."""
        return self.documents.tokens(int(self.index[place]))

    def check_ids(self, vocab_size: int, shared: int) -> None:
        """ValueError when a document holds an id the teacher has no embedding for, or whose token it does not know.

        `shared` ids mean the same to the teacher's tokenizer and to that of the data.
        """
        low, high = self.id_range
        if low < 0 or high >= vocab_size:
            raise ValueError(
                f"the data set holds the token id {high if high >= vocab_size else low}, but the teacher's vocabulary "
                f"has {vocab_size} entries (0 to {vocab_size - 1}). Tokenise the data with the teacher's tokenizer."
            )
        if high >= shared:
            raise ValueError(
                f"the data set uses the token id {high}, which was added to its tokenizer: the teacher's ends at "
                f"{shared - 1}. An added token may pad a batch, but not stand in a document."
            )


def plan_capture(documents: Documents, batch_tokens: int) -> Plan:
    """The plan for all documents that have labels; duplicates are captured once."""
    keys, lengths, labels, id_range = documents.overview
    labelled = np.flatnonzero(labels)
    if not len(labelled):
        raise ValueError(
            "no document of the data set has a label after its first token, so there is nothing to capture. "
            "Check that `labels` is not −100 everywhere (a prompt template or a completion mask that hides the answer)."
        )
    _, first = np.unique(keys[labelled].view("S16")[:, 0], return_index=True)
    index = labelled[first]
    batches = plan_batches(lengths[index], batch_tokens)
    return Plan(documents, keys[index], index, lengths[index], labels[index], batches, id_range)


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


def ready_batches(plan: Plan, batches: Sequence[np.ndarray], pace: Pace) -> Iterator[tuple[np.ndarray, Padded]]:
    """Each batch with its tokens and its padded tensors, made in a thread while the one before is computed."""

    def make(batch: np.ndarray) -> Padded:
        tokens = [plan.tokens(place) for place in batch]
        return tokens, pad_documents(tokens)

    with ThreadPoolExecutor(1, "teacher batches") as thread:
        ahead = [thread.submit(make, batch) for batch in batches[:READY_BATCHES]]
        for number, batch in enumerate(batches):
            if number + READY_BATCHES < len(batches):
                ahead.append(thread.submit(make, batches[number + READY_BATCHES]))
            with pace.waiting(DATA):
                padded = ahead.pop(0).result()
            yield batch, padded


def pad_documents(documents: list[np.ndarray]) -> dict[str, Tensor]:
    """Documents [2,T] as one batch, padded on the right."""
    width = max(document.shape[1] for document in documents)
    batch = np.zeros((3, len(documents), width), np.int64)
    batch[1] = IGNORED
    for row, document in enumerate(documents):
        batch[:2, row, : document.shape[1]] = document
        batch[2, row, : document.shape[1]] = 1
    return dict(zip(("input_ids", "labels", "attention_mask"), torch.from_numpy(batch)))


def require_shared(path: Path, patience: float) -> None:
    """ValueError, before anything is computed, on a node that does not see what the first process writes into `path`.

    The first process leaves a file whose name only this launch knows; the others look for it.
    """
    if world_size() == 1:
        return
    meeting = path / f"launch-{_launch()}"
    if is_main():
        publish(meeting, "The processes of one capture found each other here.\n", what="the teacher cache")
        for other in path.glob("launch-*"):
            if other != meeting:
                other.unlink(missing_ok=True)
        return
    for waited in _waits():
        if meeting.exists():
            return
        if waited > patience:
            raise ValueError(
                f"process {rank()} does not see in {path} what the first process wrote there within {patience:.0f} s: "
                f"{ONE_FILE_SYSTEM}. Set teacher_cache (or QSFT_CACHE) to such a directory."
            )


def wait_for_others(path: Path, outstanding: set[bytes], patience: float) -> None:
    """Return when every document is published; a process that died must not keep the others for ever."""
    seen: set[Path] = set()
    while True:
        for waited in _waits():
            fresh = set(published(path)) - seen
            for shard in fresh:
                outstanding -= {key.tobytes() for key in Shard(shard).keys}
            seen |= fresh
            if not outstanding:
                return
            if fresh:
                break  # patience begins anew
            if waited > patience:
                raise ValueError(
                    f"{len(outstanding)} documents of the teacher cache {path} did not come from the other processes "
                    f"within {patience:.0f} s. One of them probably died, or it runs on a node that writes elsewhere: "
                    f"{ONE_FILE_SYSTEM}. What was published stays: rerun the command."
                )


def _waits() -> Iterator[float]:
    """Seconds since the first look, with longer and longer sleeps in between: many ranks list one directory."""
    start, pause = time.monotonic(), SHORTEST_WAIT
    while True:
        yield time.monotonic() - start
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_WAIT)


def _launch() -> str:
    """What the processes of one launch share and those of another do not."""
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "SLURM_JOB_ID")
    return digest_json([os.environ.get(name) for name in names])
