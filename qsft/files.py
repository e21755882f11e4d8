"""Atomic file writes, and JSON with errors that name the file and the line.

A file is written under a unique temporary name in the same directory, synced, then renamed: a reader sees the old
content or the new one, after a kill and on a full disk as well. JSON lines are appended one by one; an incomplete last
line is removed before the next one is written.
"""

import errno
import json
import math
import mmap
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from qsft.redaction import redact_text

TEMPORARY = ".tmp"
TRIES = 3
STALE_SECONDS = 3600  # a temporary file lives for seconds; one this old belongs to a process that was killed
_TEMPORARY_NAME = re.compile(r".+\.[0-9a-f]{32}\.tmp")


class DiskFullError(OSError):
    """The disk is full. Files that were published before stay valid."""


def publish(path: Path, content: bytes | str, *, exclusive: bool = False, what: str = "the file") -> bool:
    """Give a file its content in one step, and return whether it was written.

    Args:
        path: the file.
        content: its content. In text, secrets that the user gave as options are replaced.
        exclusive: write only if the file does not exist; False is returned where it does.
        what: what the file is, for the message of an error.

    Raises:
        DiskFullError: there is no space left.
        ValueError: the name is that of a device, a pipe or a socket.
        OSError: the directory cannot be written.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        # The rename below would put a file in the place of the device or pipe.
        raise ValueError(f"{path} is a device, a pipe or a socket, and {what} must be a file. Choose another name.")
    data = redact_text(content).encode() if isinstance(content, str) else content
    with _explained(path.parent, what, len(data)):
        for _ in range(TRIES - 1):
            with suppress(FileNotFoundError):  # another process removed the temporary file: write it again
                return _publish(path, data, exclusive)
        return _publish(path, data, exclusive)


def _publish(path: Path, data: bytes, exclusive: bool) -> bool:
    temporary = temporary_name(path)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _share_like_directory(temporary)
        if exclusive and not _claim(temporary, path):
            return False
        if not exclusive:
            os.replace(temporary, path)
        _sync_directory(path.parent)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Give `path` this content in one step, without waiting for the disk: for what only running processes read."""
    temporary = temporary_name(path)
    try:
        temporary.write_bytes(content)
        _share_like_directory(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _share_like_directory(path: Path) -> None:
    """Let those read and write a file who may do so in its directory, whatever the umask of this process.

    Users with different umasks may share a directory; a file that only its writer can read would stop the others.
    """
    with suppress(PermissionError):
        path.chmod(0o600 | (path.parent.stat().st_mode & 0o666))


def temporary_name(path: Path) -> Path:
    """Return a unique name in the same directory, which `make_directory` recognizes as temporary."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY}")


def make_directory(path: Path, what: str = "the directory") -> None:
    """Create a directory, and remove temporary files that killed processes left in it."""
    with _explained(path, what):
        path.mkdir(parents=True, exist_ok=True)
        leftovers = [entry for entry in path.iterdir() if _TEMPORARY_NAME.fullmatch(entry.name)]
        # Their age is counted from a file made now: clocks of machines that share a file system differ by hours.
        now = _time_of_file_system(path) if leftovers else 0.0
        for leftover in leftovers:
            # It may be gone (removed or published by another process) or belong to another user.
            with suppress(FileNotFoundError, PermissionError):
                if now - leftover.stat().st_mtime > STALE_SECONDS:
                    leftover.unlink()


def nearest_directory(path: Path) -> Path:
    """Return a directory, or the nearest one above it that exists: on whose disk it will be made."""
    path = path.absolute()
    return next(directory for directory in (path, *path.parents) if directory.is_dir())


def check_writable(path: Path, what: str = "the directory") -> None:
    """Raise OSError if nothing can be written into a directory: before hours of computing, not after."""
    with _explained(path, what):
        _time_of_file_system(path)


@contextmanager
def _explained(directory: Path, what: str, needed: int = 0) -> Iterator[None]:
    """Turn the system's errors into messages that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DiskFullError(
                f"no space left in {directory}: the next {needed / 1e6:.1f} MB of {what} do not fit. "
                "What was published stays valid. Free some space and rerun the command: it continues."
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            remedy = "Choose another directory, or make this one writable."
            raise OSError(f"{what} {directory} cannot be written ({error.strerror}). {remedy}") from error
        if error.errno == errno.ENAMETOOLONG:
            raise OSError(f"{what} cannot be written: {too_long_message(directory)}") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            raise OSError(
                f"{what} {directory} cannot be a directory: a file is in the way. Choose another name."
            ) from error
        raise


def too_long_message(path: str | Path) -> str:
    """Return the message for a path that the file system does not take (ENAMETOOLONG).

    >>> too_long_message("a" * 300)
    'the path aaaaaaaaaaaaaaaaaaaa… has 300 characters, which is too long. Choose a shorter one.'
    """
    text = str(path)
    return f"the path {text[:20]}… has {len(text)} characters, which is too long. Choose a shorter one."


def shown(path: str | Path) -> str:
    """Return a path as the user would type it: relative to the current directory where it is below it.

    Other paths stay absolute, since `~` would not be expanded inside the quotes of printed commands.

    >>> shown(Path.cwd() / "runs" / "mine")
    'runs/mine'
    """
    if Path(path).is_absolute() and Path(path).is_relative_to(Path.cwd()):
        return str(Path(path).relative_to(Path.cwd()))
    return str(path)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON; NaN is written as null."""
    write_text(path, json.dumps(_nan_as_none(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step, and create its directory."""
    with _explained(path.parent, "the directory"):
        path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, text, what=path.name)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file in one step."""
    write_text(path, "".join(_line(row) for row in rows))


def write_line(file: FileIO, row: Mapping[str, Any]) -> None:
    """Append one object to a JSONL file that was opened without a buffer, so that a kill does not lose it."""
    line = redact_text(_line(row)).encode()
    path = Path(str(file.name))
    with _explained(path.parent, path.name, len(line)):
        written = 0
        while written < len(line):  # a disk that fills up takes a part first
            written += file.write(line[written:])


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file; ValueError names the file, what is wrong with it, and the remedy."""
    return _json_object(path.read_bytes(), shown(path), remedy)


def read_lines(path: Path, *, remedy: str = "Delete the line.") -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file without blank lines; ValueError names a line that is not one."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _json_object(line, f"{shown(path)}:{number}", remedy)


def remove_incomplete_line(path: Path) -> None:
    """Truncate a file after its last newline: a killed process may have written a part of a line."""
    with path.open("rb+") as file:
        if file.seek(0, os.SEEK_END):  # an empty file cannot be mapped
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                end = content.rfind(b"\n") + 1
            file.truncate(end)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _json_object(content: bytes, where: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object in some bytes; ValueError names the place, the problem and the remedy."""
    try:
        value = json.loads(content.decode())
        if isinstance(value, dict):
            return value
        why = f"not a JSON object but {type(value).__name__}"
    except UnicodeDecodeError:
        why = "not UTF-8 text"
    except (ValueError, RecursionError):
        why = "not valid JSON"
    raise ValueError(f"{where}: {why}. {remedy}")


def _nan_as_none(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _nan_as_none(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_nan_as_none(value) for value in content]
    if isinstance(content, float) and math.isnan(content):
        return None
    return content


def _claim(temporary: Path, path: Path) -> bool:
    """Rename a temporary file unless the name is taken; atomic where the file system has hard links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:
        if path.exists():
            return False
        os.replace(temporary, path)
    return True


def _time_of_file_system(directory: Path) -> float:
    """The modification time that a file written now gets: machines that share a disk may have different clocks."""
    fresh = temporary_name(directory / "probe")
    try:
        fresh.touch()
        return fresh.stat().st_mtime
    finally:
        fresh.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself durable."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
