"""The thread that encodes and publishes while the next batch is computed."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qsft.teacher.encoding import Rows, truncate
from qsft.teacher.identity import Identity
from qsft.teacher.pace import WRITES, Pace
from qsft.teacher.shards import VERSION, Draft, Entry, Facts

WAITING_BATCHES = 4  # computed, not yet encoded
SHARD_SECONDS = 60.0  # a shard is published at least this often: what a kill costs, and how ranks see each other


class Computed(NamedTuple):
    """A batch as the teacher returned it: its rows, and per document the key, tokens, row count, whether to keep it."""

    rows: Rows
    keys: list[bytes]
    tokens: list[np.ndarray]
    counts: list[int]
    wanted: list[bool]


class ShardWriter:
    """Takes computed batches, leaves published shards. Its errors come out of the next `put` or at the end."""

    def __init__(self, directory: Path, identity: Identity, shard_bytes: int, pace: Pace) -> None:
        self.bytes_written = 0
        self._directory, self._identity, self._shard_bytes, self._pace = directory, identity, shard_bytes, pace
        self._codec, self._draft, self._since = identity.codec(VERSION), Draft(), time.monotonic()
        self._queue: queue.Queue[Computed | None] = queue.Queue(WAITING_BATCHES)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="teacher cache writer", daemon=True)

    def __enter__(self) -> "ShardWriter":
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Publish what is left, also after an error of the capture: finished rows are never thrown away."""
        with self._pace.waiting(WRITES):
            self._queue.put(None)
            self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def put(self, batch: Computed) -> None:
        """Hand over a batch; blocks while too many wait."""
        if self._error is not None:
            raise self._error
        with self._pace.waiting(WRITES):
            self._queue.put(batch)

    def _run(self) -> None:
        while (batch := self._queue.get()) is not None:
            if self._error is None:  # after an error the queue is only emptied, so that nobody blocks
                self._guard(self._add, batch)
        self._guard(self._publish)

    def _guard(self, step: Callable[..., None], *args: Computed) -> None:
        try:
            step(*args)
        except Exception as error:  # carried to the thread that computes
            self._error = self._error or error

    def _add(self, batch: Computed) -> None:
        refuse_nan(batch.rows)
        first, ends = batch.wanted.index(True), np.cumsum(batch.counts)
        for i, (key, tokens, count) in enumerate(zip(batch.keys, batch.tokens, batch.counts)):
            if batch.wanted[i]:
                self._encode(key, tokens, batch.rows.part(slice(ends[i] - count, ends[i])), compare=i == first)
        full = self._draft.facts.payload_bytes >= self._shard_bytes
        if full or time.monotonic() - self._since > SHARD_SECONDS:
            self._publish()

    def _encode(self, key: bytes, tokens: np.ndarray, rows: Rows, compare: bool) -> None:
        rows = truncate(rows, self._identity.top_p, self._identity.min_k)
        payload = self._codec.encode(rows)
        facts = Facts.of(rows, payload, self._codec if compare else None)
        self._draft.add(Entry(key, len(rows.label_logp), payload, tokens), facts)
        self.bytes_written += len(payload)

    def _publish(self) -> None:
        draft, self._draft, self._since = self._draft, Draft(), time.monotonic()
        if draft.entries:
            draft.publish(self._directory, asdict(self._identity))


def refuse_nan(rows: Rows) -> None:
    """ValueError when the teacher returned something that is not a distribution."""
    if np.isnan(rows.logps).any() or np.isnan(rows.label_logp).any():
        raise ValueError(
            "the teacher returned NaN for a document, so nothing of this batch was stored; what was published stays. "
            "Its weights may be damaged, or its dtype too narrow: try `dtype='float32'` or 'bfloat16'."
        )
