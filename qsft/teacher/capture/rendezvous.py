"""How the processes of a capture meet: through files in the cache's directory, never in a collective.

A capture may run inside a trainer whose process group has its own time-out, and its processes finish hours apart. Each
process keeps a small file with a counter that its heartbeat thread increases. Others compare the counter with their own
monotonic clock: clocks of machines that share a file system may differ by hours, so modification times are not used.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from qsft.files import TEMPORARY, replace_file
from qsft.fingerprints import digest_json
from qsft.teacher.format.shards import Shard, published_shards
from qsft.teacher.sources.source import Replica

SHORTEST_WAIT = 0.2  # seconds between two looks at the directory
LONGEST_WAIT = 5.0
HEARTBEAT_SECONDS = 5.0
ARRIVAL_SECONDS = 1800.0  # how much later than others a process may come: it may load its student from a slow disk
NOTICE_SECONDS = 300.0  # how often a waiting process says what it waits for
LAUNCH_VARIABLES = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")
SHARED_FILE_SYSTEM = "all nodes must see this directory on a file system they share"


class Rendezvous:
    """The processes of one capture in a directory; inside `with`, this one shows that it is alive.

    Args:
        patience: seconds without a heartbeat after which a process that had one counts as dead.
    """

    def __init__(self, path: Path, replica: Replica, patience: float) -> None:
        self._path = path
        self._replica = replica
        self._patience = patience
        self._launch = [os.environ.get(name) for name in LAUNCH_VARIABLES]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Rendezvous":
        if self._replica.count > 1:
            self._beat(0)
            self._thread = threading.Thread(target=self._keep_beating, name="teacher cache heartbeat", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._heartbeat_file(self._replica.index).unlink(missing_ok=True)

    def check_shared(self, keys: np.ndarray) -> None:
        """Raise ValueError, before anything is computed, on a node that does not see what the first process writes.

        A process that comes late may find that the first one has finished and left. Then all documents are published,
        because the first process waits for them.

        Args:
            keys: uint8 [n, 16], the documents that were missing when this process looked.
        """
        if self._replica.index == 0:
            return
        outstanding = _Outstanding(self._path, {key.tobytes(): 0 for key in keys})
        notices = _Notices()
        for waited in _waits():
            is_running = self._heartbeat(0) is not None
            if is_running or not outstanding.update():  # in this order: it publishes before it leaves
                return
            if waited > ARRIVAL_SECONDS:
                raise ValueError(
                    f"process {self._replica.index} does not see in {self._path} what the first process writes there, "
                    f"after {ARRIVAL_SECONDS:.0f} s: {SHARED_FILE_SYSTEM}. Set teacher_cache (or QSFT_CACHE) to such a "
                    "directory."
                )
            if notices.is_due(waited):
                print(
                    f"process {self._replica.index} waits for the first process in {self._path}: {SHARED_FILE_SYSTEM}",
                    file=sys.stderr,
                )

    def wait_for(self, keys: np.ndarray, owners: np.ndarray) -> None:
        """Return when every document is published.

        Args:
            keys: uint8 [n, 16], the documents of this capture that were missing.
            owners: the index of the replica that computes each.

        Raises:
            ValueError: if a process that owes documents has died, or a published shard was removed.
        """
        outstanding = _Outstanding(self._path, {key.tobytes(): int(owner) for key, owner in zip(keys, owners)})
        signs = _SignsOfLife(self._heartbeat)
        notices = _Notices()
        for waited in _waits():
            awaited = sorted(outstanding.owners - {self._replica.index})
            signs.observe(awaited)  # before the shards: a process that has finished has published everything
            count = outstanding.update()
            if not count:
                return
            if self._replica.index in outstanding.owners:
                raise ValueError(
                    f"{count} documents are missing from the teacher cache {self._path} although this process captured "
                    "them: a shard was removed meanwhile. Rerun the command."
                )
            for owner in sorted(outstanding.owners):
                limit = self._patience if signs.has_arrived(owner) else ARRIVAL_SECONDS
                if signs.silence(owner) > limit:
                    raise ValueError(
                        f"{count} documents of the teacher cache {self._path} are missing, and process {owner} has "
                        f"shown no sign of life for {limit:.0f} s. It probably died, or it runs on a node that writes "
                        f"elsewhere: {SHARED_FILE_SYSTEM}. What was published stays: rerun the command."
                    )
            if notices.is_due(waited):
                names = ", ".join(map(str, awaited))
                print(f"waiting for {count} documents of the processes {names}", file=sys.stderr)

    def _heartbeat_file(self, index: int) -> Path:
        """The file of a process of this launch.

        Its name is that of a temporary file: it is ignored by readers of the cache, and `make_directory` removes one
        that a killed process left an hour ago.
        """
        key = digest_json([self._replica.count, index, self._launch])
        return self._path / f"process-{index}.{key}{TEMPORARY}"

    def _heartbeat(self, index: int) -> bytes | None:
        """The content of a process's file; None while there is none."""
        try:
            return self._heartbeat_file(index).read_bytes()
        except FileNotFoundError:
            return None

    def _beat(self, count: int) -> None:
        content = f"{os.getpid()} {count}\n".encode()
        replace_file(self._heartbeat_file(self._replica.index), content)

    def _keep_beating(self) -> None:
        count = 0
        while not self._stop.wait(min(HEARTBEAT_SECONDS, self._patience / 4)):
            count += 1
            try:
                self._beat(count)
            except OSError:
                continue  # a full disk is reported by the writer


class _Outstanding:
    """Documents that are not published yet, with the index of the replica that computes each."""

    def __init__(self, path: Path, owner_of: dict[bytes, int]) -> None:
        self._path = path
        self._owner_of = owner_of
        self._seen: set[Path] = set()

    @property
    def owners(self) -> set[int]:
        return set(self._owner_of.values())

    def update(self) -> int:
        """Read the shards that were published since the last call; return how many documents are still missing."""
        new_shards = set(published_shards(self._path)) - self._seen
        for shard in new_shards:
            for key in Shard(shard).keys:
                self._owner_of.pop(key.tobytes(), None)
        self._seen |= new_shards
        return len(self._owner_of)


class _SignsOfLife:
    """When the heartbeats of other processes last changed, by this process's monotonic clock."""

    def __init__(self, read_heartbeat: Callable[[int], bytes | None]) -> None:
        self._read_heartbeat = read_heartbeat
        self._last: dict[int, tuple[bytes | None, float]] = {}

    def observe(self, processes: list[int]) -> None:
        now = time.monotonic()
        for process in processes:
            content = self._read_heartbeat(process)
            known = self._last.get(process)
            if known is None or (content is not None and content != known[0]):
                self._last[process] = (content, now)

    def has_arrived(self, process: int) -> bool:
        return process in self._last and self._last[process][0] is not None

    def silence(self, process: int) -> float:
        """Seconds since a process's heartbeat last changed, as far as it was observed."""
        if process not in self._last:
            return 0.0
        return time.monotonic() - self._last[process][1]


class _Notices:
    """When a waiting process says again what it waits for."""

    def __init__(self) -> None:
        self._last = 0.0

    def is_due(self, waited: float) -> bool:
        if waited - self._last <= NOTICE_SECONDS:
            return False
        self._last = waited
        return True


def _waits() -> Iterator[float]:
    """Yield the seconds since the first look, with growing pauses: many processes list one directory."""
    start = time.monotonic()
    pause = SHORTEST_WAIT
    while True:
        yield time.monotonic() - start
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_WAIT)
