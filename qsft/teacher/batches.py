"""Which documents a capture computes, in which batches; and how the processes that divide them find each other.

A batch's padding changes the rounding of its rows. So batches are planned from all documents of the data set, sorted,
before anything is computed: a capture that was killed, or that ran on another number of processes, comes out bit-equal.
The plan says too which process computes a document, whenever it looks at the directory. Processes (as torchrun and
`accelerate launch` start them) meet there, never in a collective that could time out.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qsft.files import TEMPORARY, publish
from qsft.fingerprints import digest_json
from qsft.processes import is_main, rank, world_size
from qsft.teacher.documents import Documents
from qsft.teacher.lookup import TeacherCache
from qsft.teacher.shards import Shard, published

SHORTEST_WAIT, LONGEST_WAIT = 0.2, 5.0  # between two looks at the directory, seconds
MEETING_SECONDS = 180.0
ONE_FILE_SYSTEM = "all nodes must see this directory on a file system they share"


@dataclass(frozen=True)
class Plan:
    """The distinct documents with labels, by key, and their batches (each a list of places in `keys`)."""

    documents: Documents
    keys: np.ndarray  # uint8 [n,16], sorted
    index: np.ndarray  # the document of each
    lengths: np.ndarray
    labels: np.ndarray  # label positions of each
    batch_tokens: int
    batches: list[np.ndarray]

    def missing(self, cache: TeacherCache | None) -> np.ndarray:
        """Which documents `cache` lacks, as a mask over `keys`."""
        return np.ones(len(self.keys), bool) if cache is None else cache.absent(self.keys)

    def left(self, missing: np.ndarray) -> list[np.ndarray]:
        """The batches of this process that hold what is `missing`, and nothing else.

        Those of which nothing is there stay as planned. The rest of the others (new documents beside known ones) is
        put together: data added to a large cache cost what they hold, not a pass over everything.
        """
        mine = [(batch, missing[batch]) for batch in self.batches[rank() :: world_size()]]
        rest = np.concatenate([self.index[:0], *(batch[lacks] for batch, lacks in mine if not lacks.all())])
        added = plan_batches(self.lengths[rest], self.batch_tokens)
        return [batch for batch, lacks in mine if lacks.all()] + [rest[places] for places in added]

    def tokens(self, place: int) -> np.ndarray:
        """int32 [2,T]: input_ids and labels of a document, the first label ignored as in its key."""
        return self.documents.tokens(int(self.index[place]))

    def check_ids(self, vocab_size: int, shared: int) -> None:
        """ValueError when a document holds an id the teacher has no embedding for, or whose token it does not know.

        `shared` ids mean the same to the teacher's tokenizer and to that of the data.
        """
        low, high = self.documents.overview.id_range
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
    keys, labels, _ = documents.overview
    labelled = np.flatnonzero(labels)
    if not len(labelled):
        raise ValueError(
            "no document of the data set has a label after its first token, so there is nothing to capture. "
            "Check that `labels` is not −100 everywhere (a prompt template or a completion mask that hides the answer)."
        )
    _, first = np.unique(keys[labelled].view("S16")[:, 0], return_index=True)
    index = labelled[first]
    lengths = documents.lengths[index]
    return Plan(
        documents, keys[index], index, lengths, labels[index], batch_tokens, plan_batches(lengths, batch_tokens)
    )


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


def require_shared(path: Path, patience: float) -> None:
    """ValueError, before anything is computed, on a node that does not see what the first process writes into `path`.

    The first process leaves a file whose name only this launch knows; the others look for it. It has the name of a
    temporary file, so `make_directory` tidies it an hour later, when no process of its launch looks for it any more.
    """
    if world_size() == 1:
        return
    meeting = path / f"launch.{_launch()}{TEMPORARY}"
    if is_main():
        publish(meeting, "The processes of one capture found each other here.\n", what="the teacher cache")
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
    last_news = 0.0
    for waited in _waits():
        fresh = set(published(path)) - seen
        for shard in fresh:
            outstanding -= {key.tobytes() for key in Shard(shard).keys}
        if not outstanding:
            return
        seen |= fresh
        last_news = waited if fresh else last_news
        if waited - last_news > patience:
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
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
    return digest_json([world_size(), *map(os.environ.get, names)])
