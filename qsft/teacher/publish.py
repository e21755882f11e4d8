"""Putting a file into a cache so that a kill, a full disk or a second writer never leaves half of one."""

import errno
import hashlib
import os
import time
import uuid
from pathlib import Path

TEMPORARY = ".tmp"
STALE_SECONDS = 3600  # a temporary file lives for seconds; one this old belongs to a capture that was killed


class NoSpace(OSError):
    """The disk is full; what was published stays."""


def digest(content: bytes) -> str:
    """128 bits of BLAKE2 as 32 hex digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def publish(path: Path, content: bytes, *, exclusive: bool = False) -> bool:
    """Write a temporary file, fsync it, rename it; False when `exclusive` and `path` was there already."""
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if exclusive and not _claim(temporary, path):
            return False
        if not exclusive:
            os.replace(temporary, path)
        _sync_directory(path.parent)
        return True
    except OSError as error:
        raise explain(error, path.parent, len(content)) from error
    finally:
        temporary.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Create the cache's directory and drop what killed captures left half written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        for leftover in path.glob(f"*{TEMPORARY}"):
            if time.time() - leftover.stat().st_mtime > STALE_SECONDS:
                leftover.unlink(missing_ok=True)
    except FileNotFoundError:
        return  # another process tidied up the same leftovers
    except OSError as error:
        raise explain(error, path, 0) from error


def probe(path: Path) -> None:
    """OSError now, before hours of computing, when `path` cannot be written."""
    temporary = path / f"{uuid.uuid4().hex}{TEMPORARY}"
    try:
        temporary.touch()
        temporary.unlink()
    except OSError as error:
        raise explain(error, path, 0) from error


def explain(error: OSError, directory: Path, needed: int) -> OSError:
    """The same error in words that say what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpace(
            f"no space left in {directory}: the next {needed / 1e6:.1f} MB of the teacher cache do not fit. "
            "What was published stays valid. Free some space and run the same command again: it continues."
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return OSError(
            f"the teacher cache {directory} cannot be written ({error.strerror}). "
            "Choose another directory, or make this one writable."
        )
    return error


def _claim(temporary: Path, path: Path) -> bool:
    """Give `temporary` the name `path` unless it is taken; atomic where the file system knows hard links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
