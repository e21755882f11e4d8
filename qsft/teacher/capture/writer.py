"""The thread of a capture that encodes computed batches and publishes them as shards."""

import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from qsft.teacher.capture.timing import WRITES, WaitingTimes
from qsft.teacher.format.encoding import TopKArrays, truncate
from qsft.teacher.format.shards import EncodedDocument, ShardBuilder, ShardStatistics
from qsft.teacher.identity import Identity

BATCHES_BEHIND = 4  # computed, not yet encoded
SHARD_SECONDS = 60.0  # a shard is published at least this often: it limits what a kill costs


@dataclass(frozen=True)
class ComputedBatch:
    """The log-probs of some documents, one after the other, with their keys, tokens [2, T] and label counts."""

    log_probs: TopKArrays
    keys: list[bytes]
    tokens: list[np.ndarray]
    label_counts: list[int]


class ShardWriter:
    """Takes computed batches and publishes shards. Its errors are raised by a later `put`, or at the end."""

    def __init__(self, directory: Path, identity: Identity, shard_bytes: int, times: WaitingTimes) -> None:
        self.bytes_written = 0
        self._directory = directory
        self._identity = identity
        self._codec = identity.codec()
        self._shard_bytes = shard_bytes
        self._times = times
        self._builder = ShardBuilder()
        self._last_shard = time.monotonic()
        self._thread = ThreadPoolExecutor(1, "teacher cache writer")
        self._pending: deque[Future[None]] = deque()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        """Publish what is left, also after an error of the capture: computed log-probs are never thrown away."""
        with self._times.waiting_for(WRITES), self._thread:
            self._pending.append(self._thread.submit(self._publish))
        if error is None:
            for step in self._pending:
                step.result()

    def put(self, batch: ComputedBatch) -> None:
        """Hand over a batch; blocks while too many wait."""
        with self._times.waiting_for(WRITES):
            while self._pending and (self._pending[0].done() or len(self._pending) >= BATCHES_BEHIND):
                self._pending.popleft().result()
        self._pending.append(self._thread.submit(self._add, batch))

    def _add(self, batch: ComputedBatch) -> None:
        """Encode a complete batch or nothing: no shard holds a part of one, so a killed capture continues bit-equal."""
        encoded = self._encode(batch)
        for document, statistics in encoded:
            self._builder.add(document, statistics)
            self.bytes_written += len(document.payload)
        is_full = self._builder.statistics.payload_bytes >= self._shard_bytes
        if is_full or time.monotonic() - self._last_shard > SHARD_SECONDS:
            self._publish()

    def _encode(self, batch: ComputedBatch) -> list[tuple[EncodedDocument, ShardStatistics]]:
        encoded: list[tuple[EncodedDocument, ShardStatistics]] = []
        start = 0
        for key, tokens, count in zip(batch.keys, batch.tokens, batch.label_counts):
            log_probs = batch.log_probs.at(slice(start, start + count))
            log_probs = truncate(log_probs, self._identity.top_p, self._identity.min_k)
            payload = self._codec.encode(log_probs)
            statistics = ShardStatistics.of_document(log_probs, payload)
            if not encoded:  # the encoding's error is measured on one document of a batch
                statistics.measure_error(log_probs, payload, self._codec)
            encoded.append((EncodedDocument(key, count, payload, tokens), statistics))
            start += count
        return encoded

    def _publish(self) -> None:
        builder = self._builder
        self._builder = ShardBuilder()
        self._last_shard = time.monotonic()
        if builder.documents:
            builder.publish(self._directory, asdict(self._identity))
