"""The thread of a capture that reads the next batches from disk while the teacher computes one."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from qsft.teacher.capture.plan import Plan
from qsft.teacher.capture.timing import DATA, WaitingTimes

BATCHES_AHEAD = 2  # read, not yet computed


class ReadBatch(NamedTuple):
    """A planned batch: its places in the plan, and its documents [2, T]."""

    places: np.ndarray
    documents: list[np.ndarray]


def read_batches(plan: Plan, batches: Sequence[np.ndarray], times: WaitingTimes) -> Iterator[ReadBatch]:
    """Yield the batches, each read in a thread while the one before is computed."""

    def read(places: np.ndarray) -> ReadBatch:
        return ReadBatch(places, [plan.documents.tokens(index) for index in plan.index[places].tolist()])

    with ThreadPoolExecutor(1, "teacher cache reader") as thread:
        ahead: deque[Future[ReadBatch]] = deque(thread.submit(read, batch) for batch in batches[:BATCHES_AHEAD])
        for number in range(len(batches)):
            following = number + BATCHES_AHEAD
            if following < len(batches):
                ahead.append(thread.submit(read, batches[following]))
            with times.waiting_for(DATA):
                batch = ahead.popleft().result()
            yield batch
