"""How the processes of a capture meet: through files in the cache's directory, never in a collective."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from qsft.files import TEMPORARY, publish
from qsft.fingerprints import digest_json
from qsft.processes import is_main, rank, world_size
from qsft.teacher.format.shards import Shard, published

SHORTEST_WAIT, LONGEST_WAIT = 0.2, 5.0  # between two looks at the directory, seconds
MEETING_SECONDS = 180.0
ONE_FILE_SYSTEM = "all nodes must see this directory on a file system they share"


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
