"""A capture's way from documents to shards: which batches, by which of its processes, in which of their threads.

A batch's padding changes the rounding of its rows. So batches are planned from all documents of the data set, sorted,
before anything is computed: a capture that was killed, or that ran on another number of processes, comes out bit-equal.
The plan says too which process computes a document, whenever it looks at the directory. Processes (as torchrun and
`accelerate launch` start them) meet there, never in a collective that could time out.

In a process one thread pads batches before the teacher, one encodes and publishes its rows behind it. It should wait
for neither; where its time goes is measured, and said with what to change when it is slow.
"""

import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qsft.files import TEMPORARY, publish
from qsft.fingerprints import digest_json
from qsft.processes import is_main, rank, world_size
from qsft.targets.view import IGNORED
from qsft.teacher.documents import Documents
from qsft.teacher.encoding import Rows, truncate
from qsft.teacher.identity import Identity
from qsft.teacher.shards import VERSION, Draft, Facts, Shard, published

SHORTEST_WAIT, LONGEST_WAIT = 0.2, 5.0  # between two looks at the directory, seconds
MEETING_SECONDS = 180.0
ONE_FILE_SYSTEM = "all nodes must see this directory on a file system they share"
READY_BATCHES = 2  # padded, not yet computed
WAITING_BATCHES = 4  # computed, not yet encoded
SHARD_SECONDS = 60.0  # a shard is published at least this often: what a kill costs, and how ranks see each other
DATA, WRITES = "data", "writes"
NOTABLE = 1 / 3  # a share of the time, or of a GPU's memory, that is worth a word
FIRST_LOOK = 60.0  # seconds; a shorter capture is not worth any
REMEDIES = {
    DATA: "Keep the prepared data set on a local disk, and leave this process a CPU core for reading it.",
    WRITES: "Put the cache (teacher_cache, --out) on a faster disk, leave this process a CPU core for encoding, "
    "or store less (teacher_top_k, teacher_top_p).",
}
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

    def check_ids(self, vocab_size: int, shared: int) -> None:
        """ValueError for an id without embedding, or beyond the `shared` ones that mean the same to the teacher."""
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


def plan_batches(lengths: np.ndarray, batch_tokens: int) -> list[np.ndarray]:
    """Places grouped by length, longest first, with at most `batch_tokens` tokens including padding in a batch."""
    order = np.argsort(-lengths, kind="stable")  # a batch that does not fit the memory fails first, not after hours
    batches, start = [], 0
    while start < len(order):
        size = max(1, int(batch_tokens // lengths[order[start]]))
        batches.append(order[start : start + size])
        start += size
    return batches


# ---- processes ----


def require_shared(path: Path, patience: float) -> None:
    """ValueError, before anything is computed, on a node that does not see what the first process writes into `path`.

    The first process leaves a file whose name only this launch knows; the others look for it. It has the name of a
    temporary file, so `make_directory` tidies it an hour later, when no process of its launch looks for it any more.
    """
    if world_size() == 1:
        return
    launch = map(os.environ.get, ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID"))
    meeting = path / f"launch.{digest_json([world_size(), *launch])}{TEMPORARY}"
    if is_main():
        publish(meeting, "The processes of one capture found each other here.\n", what="the teacher cache")
        return
    patience = min(patience, MEETING_SECONDS)
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


# ---- threads ----


class Pace:
    """The seconds in which a capture's teacher had to wait, by what for."""

    def __init__(self, device: torch.device, show: bool = True) -> None:
        self.waited = dict.fromkeys(REMEDIES, 0.0)
        self._device, self._show, self._said = device, show, False

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """What happens inside keeps the teacher waiting for `what`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.waited[what] += time.monotonic() - start

    def split(self, seconds: float) -> str:
        shares = {what: waited / max(seconds, 1e-9) for what, waited in self.waited.items()}
        waits = (f"{share:.0%} waiting for {what}" for what, share in shares.items())
        return ", ".join([f"{max(1 - sum(shares.values()), 0):.0%} of the time the teacher's own", *waits])

    def advise(self, seconds: float, *, finished: bool = False) -> None:
        """Say what to change, once after the first minute and once at the end."""
        if self._show and seconds >= FIRST_LOOK and (finished or not self._said):
            self._said = True
            for line in self.advice(seconds):
                print(f"slow capture: {line}", file=sys.stderr)

    def advice(self, seconds: float) -> list[str]:
        """What to change after so many seconds, largest gain first; nothing where a GPU is kept busy."""
        shares = {what: waited / seconds for what, waited in self.waited.items() if waited > NOTABLE * seconds}
        if shares:
            slowest_first = sorted(shares, key=shares.__getitem__, reverse=True)
            return [f"{shares[what]:.0%} of the time is waiting for {what}. {REMEDIES[what]}" for what in slowest_first]
        if self._device.type == "cpu":
            return ["the teacher computes on a CPU; a GPU is a hundred times faster. A cache may be built elsewhere."]
        used = memory_share(self._device)
        few = f"the teacher uses {used:.0%} of its GPU's memory. Raise teacher_batch_tokens (--batch_tokens)."
        return [] if used > NOTABLE else [few]


def memory_share(device: torch.device) -> float:
    """How much of a GPU's memory this process held at its peak; 1 where that is not known."""
    if device.type != "cuda":
        return 1.0
    return torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory


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


class ShardWriter:
    """Takes computed batches, leaves published shards. Its errors come out of a later `put` or at the end."""

    def __init__(self, directory: Path, identity: Identity, shard_bytes: int, pace: Pace) -> None:
        self.bytes_written = 0
        self._directory, self._identity, self._shard_bytes, self._pace = directory, identity, shard_bytes, pace
        self._codec, self._draft, self._since = identity.codec(VERSION), Draft(), time.monotonic()
        self._thread = ThreadPoolExecutor(1, "teacher cache writer")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Publish what is left, also after an error of the capture: finished rows are never thrown away."""
        with self._pace.waiting(WRITES), self._thread:
            self._pending.append(self._thread.submit(self._publish))
        if error is None:
            for step in self._pending:
                step.result()

    def put(self, rows: Rows, keys: list[bytes], tokens: list[np.ndarray], counts: list[int]) -> None:
        """Hand over a batch: its rows, and each document's key, tokens and row count; blocks while too many wait."""
        with self._pace.waiting(WRITES):
            while self._pending and (self._pending[0].done() or len(self._pending) >= WAITING_BATCHES):
                self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._add, rows, keys, tokens, counts))

    def _add(self, rows: Rows, keys: list[bytes], tokens: list[np.ndarray], counts: list[int]) -> None:
        """Encode a whole batch or nothing: as no shard holds a part of one, a killed capture continues bit-equal."""
        encoded: list[tuple[bytes, Facts]] = []
        for count, end in zip(counts, np.cumsum(counts)):
            part = truncate(rows.part(slice(end - count, end)), self._identity.top_p, self._identity.min_k)
            payload = self._codec.encode(part)
            encoded.append((payload, Facts.of(part, payload, None if encoded else self._codec)))
        for key, document, (payload, facts) in zip(keys, tokens, encoded):
            self._draft.add(key, payload, document, facts)
            self.bytes_written += len(payload)
        full = self._draft.facts.payload_bytes >= self._shard_bytes
        if full or time.monotonic() - self._since > SHARD_SECONDS:
            self._publish()

    def _publish(self) -> None:
        draft, self._draft, self._since = self._draft, Draft(), time.monotonic()
        if draft.documents:
            draft.publish(self._directory, asdict(self._identity))
