"""Processes that fill one cache together: they meet in its directory, never in a collective that could time out."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from qsft.files import publish
from qsft.fingerprints import digest_json
from qsft.processes import is_main, rank, world_size
from qsft.teacher.shards import Shard, published

SHORTEST_WAIT, LONGEST_WAIT = 0.2, 5.0  # between two looks at the directory, seconds
MEETING_SECONDS = 180.0
ONE_FILE_SYSTEM = "all nodes must see this directory on a file system they share"


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
