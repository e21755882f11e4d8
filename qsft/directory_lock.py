"""A lock on a directory: two processes that write the same files do not work there at once.

The lock is on the directory itself, so no file is left behind, and the kernel releases it when the process ends,
however it ends. On file systems that cannot lock a directory (NFS, for example) there is no lock.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qsft.files import make_directory, shown

_held: dict[tuple[int, int], int] = {}  # by device and inode: the open handles of the directories locked here


def _release_in_child() -> None:
    """Close a forked child's copies of the handles: a data loader's worker that outlives its parent holds no lock."""
    for handle in _held.values():
        os.close(handle)
    _held.clear()


os.register_at_fork(after_in_child=_release_in_child)


@contextmanager
def hold_directory(directory: Path, remedy: str) -> Iterator[None]:
    """Create a directory and lock it for this process; a directory that this process has locked is left as it is.

    Raises:
        ValueError: another process has locked the directory.
    """
    make_directory(directory)
    handle = os.open(directory, os.O_RDONLY)
    status = os.fstat(handle)
    identity = (status.st_dev, status.st_ino)
    if identity in _held:
        os.close(handle)
        yield
        return
    _held[identity] = handle
    try:
        _lock(handle, directory, remedy)
        yield
    finally:
        if _held.pop(identity, None) is not None:  # a forked child has closed it already
            os.close(handle)


def _lock(handle: int, directory: Path, remedy: str) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EWOULDBLOCK:
            raise ValueError(
                f"another process is writing to {shown(directory)}, and the files of both would mix. {remedy}"
            ) from error
