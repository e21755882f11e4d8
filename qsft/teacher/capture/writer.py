"""The thread of a capture that encodes computed batches and publishes them as shards."""

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import numpy as np

from qsft.teacher.capture.timing import WRITES, Pace
from qsft.teacher.format.encoding import TopKArrays, truncate
from qsft.teacher.format.shards import VERSION, Draft, Facts
from qsft.teacher.identity import Identity

WAITING_BATCHES = 4  # computed, not yet encoded
SHARD_SECONDS = 60.0  # a shard is published at least this often: what a kill costs, and how ranks see each other


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

    def put(self, rows: TopKArrays, keys: list[bytes], tokens: list[np.ndarray], counts: list[int]) -> None:
        """Hand over a batch: its rows, and each document's key, tokens and row count; blocks while too many wait."""
        with self._pace.waiting(WRITES):
            while self._pending and (self._pending[0].done() or len(self._pending) >= WAITING_BATCHES):
                self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._add, rows, keys, tokens, counts))

    def _add(self, rows: TopKArrays, keys: list[bytes], tokens: list[np.ndarray], counts: list[int]) -> None:
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
