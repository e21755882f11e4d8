"""The threads around a capture's teacher: one pads batches before it, one encodes and publishes its rows behind it.

The teacher should wait for neither; where its time goes is measured, and said with what to change when it is slow.
"""

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qsft.targets.view import IGNORED
from qsft.teacher.batches import Plan
from qsft.teacher.encoding import Rows, truncate
from qsft.teacher.identity import Identity
from qsft.teacher.shards import VERSION, Draft, Facts

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
Padded = tuple[list[np.ndarray], dict[str, Tensor]]  # each document's tokens, and all as one batch of tensors


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
        """The shares of `seconds` in one line."""
        shares = {what: waited / max(seconds, 1e-9) for what, waited in self.waited.items()}
        waits = (f"{share:.0%} waiting for {what}" for what, share in shares.items())
        return ", ".join([f"{max(1 - sum(shares.values()), 0):.0%} of the time the teacher's own", *waits])

    def advise(self, seconds: float, *, finished: bool = False) -> None:
        """Say what to change, once after the first minute and once at the end."""
        if not self._show or seconds < FIRST_LOOK or (self._said and not finished):
            return
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
        if used > NOTABLE:
            return []
        return [f"the teacher uses {used:.0%} of its GPU's memory. Raise teacher_batch_tokens (--batch_tokens)."]


def memory_share(device: torch.device) -> float:
    """How much of a GPU's memory this process held at its peak; 1 where that is not known."""
    if device.type != "cuda":
        return 1.0
    return torch.cuda.max_memory_allocated(device) / torch.cuda.get_device_properties(device).total_memory


def ready_batches(plan: Plan, batches: Sequence[np.ndarray], pace: Pace) -> Iterator[tuple[np.ndarray, Padded]]:
    """Each batch with its tokens and its padded tensors, made in a thread while the one before is computed."""

    def make(batch: np.ndarray) -> Padded:
        tokens = [plan.tokens(place) for place in batch]
        return tokens, pad_documents(tokens)

    with ThreadPoolExecutor(1, "teacher batches") as thread:
        ahead = [thread.submit(make, batch) for batch in batches[:READY_BATCHES]]
        for batch, later in zip_longest(batches, batches[READY_BATCHES:]):
            if later is not None:
                ahead.append(thread.submit(make, later))
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


class Computed(NamedTuple):
    """A batch as the teacher returned it: its rows, and per document the key, the tokens and the number of rows."""

    rows: Rows
    keys: list[bytes]
    tokens: list[np.ndarray]
    counts: list[int]


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

    def put(self, batch: Computed) -> None:
        """Hand over a batch; blocks while too many wait."""
        with self._pace.waiting(WRITES):
            while self._pending and (self._pending[0].done() or len(self._pending) >= WAITING_BATCHES):
                self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._add, batch))

    def _add(self, batch: Computed) -> None:
        """Encode a whole batch or nothing: as no shard holds a part of one, a killed capture continues bit-equal."""
        ends = np.cumsum(batch.counts)
        parts = (batch.rows.part(slice(end - count, end)) for count, end in zip(batch.counts, ends))
        encoded = [self._encode(rows, compare=i == 0) for i, rows in enumerate(parts)]
        for key, tokens, (payload, facts) in zip(batch.keys, batch.tokens, encoded):
            self._draft.add(key, payload, tokens, facts)
            self.bytes_written += len(payload)
        full = self._draft.facts.payload_bytes >= self._shard_bytes
        if full or time.monotonic() - self._since > SHARD_SECONDS:
            self._publish()

    def _encode(self, rows: Rows, compare: bool) -> tuple[bytes, Facts]:
        rows = truncate(rows, self._identity.top_p, self._identity.min_k)
        payload = self._codec.encode(rows)
        return payload, Facts.of(rows, payload, self._codec if compare else None)

    def _publish(self) -> None:
        draft, self._draft, self._since = self._draft, Draft(), time.monotonic()
        if draft.documents:
            draft.publish(self._directory, asdict(self._identity))
