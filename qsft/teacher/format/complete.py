"""complete.json: which data sets are complete in a cache, and when they were last used.

A start looks every document up once and notes the result under the data's digest, with a stamp of the files that hold
the data and the shards the documents were found in: the next start needs no pass over the data. The file may be lost,
truncated or edited at any time; what it does not say is looked up again. `qsft cache list` reads it, too.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

from qsft.files import publish
from qsft.processes import is_main
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import sealed_json

COMPLETE = "complete.json"
MOST_ENTRIES = 64
USE_RESOLUTION = timedelta(hours=1)  # a last use this recent is not written again


@dataclass(frozen=True)
class CompleteData:
    """A data set whose documents are all in a cache."""

    name: str
    documents: int
    stamp: str | None  # of the data's files, where it has any
    shards: list[str]
    last_use: str  # UTC, ISO 8601


def is_complete(directory: Path, documents: Documents, shards: Collection[str]) -> bool:
    """Whether an earlier start found every document in `shards`, the ones that exist now; notes the use."""
    entries = read_complete(directory)
    if not entries:
        return False
    stamp = documents.stamp
    entry = next((entry for entry in entries.values() if stamp is not None and entry.stamp == stamp), None)
    if entry is None:
        entry = entries.get(documents.digest)
    if entry is None or not set(shards).issuperset(entry.shards):
        return False
    if datetime.now(UTC) - datetime.fromisoformat(entry.last_use) > USE_RESOLUTION:
        note_complete(directory, documents, entry.shards)
    return True


def note_complete(directory: Path, documents: Documents, shards: Collection[str]) -> None:
    """Note that `documents` are complete in `shards` and in use; a directory that cannot be written is left alone."""
    if not is_main():
        return
    entries = read_complete(directory)
    entries.pop(documents.digest, None)  # the newest entry is the last one
    entries[documents.digest] = CompleteData(
        name=documents.description,
        documents=len(documents),
        stamp=documents.stamp,
        shards=sorted(shards),
        last_use=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    newest = dict(list(entries.items())[-MOST_ENTRIES:])
    with suppress(OSError):  # read-only, or full: the next start looks again
        publish(directory / COMPLETE, _render(newest), what="the teacher cache")


def is_damaged(directory: Path) -> bool:
    """Whether the file exists and is not as it was written; it is then ignored."""
    return (directory / COMPLETE).is_file() and not read_complete(directory)


def read_complete(directory: Path) -> dict[str, CompleteData]:
    """The complete data sets by digest; none when the file is missing or not as it was written."""
    path = directory / COMPLETE
    try:
        raw = path.read_bytes() if path.is_file() else b""
        entries = {name: _parse(entry) for name, entry in json.loads(raw)["complete"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return entries if _render(entries) == raw else {}


def _parse(entry: dict[str, object]) -> CompleteData:
    if set(entry) != {field.name for field in fields(CompleteData)}:
        raise ValueError("not an entry of complete.json")
    data = CompleteData(**entry)  # type: ignore[arg-type]
    datetime.fromisoformat(data.last_use)
    return data


def _render(entries: dict[str, CompleteData]) -> bytes:
    return sealed_json({"complete": {name: asdict(entry) for name, entry in entries.items()}})
