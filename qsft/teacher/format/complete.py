"""complete.json: which data sets were found complete in a cache, so that the next start makes no pass over them.

A start looks every document up once. What it found is remembered under the data's digest and under a stamp of the files
that hold the data, with the shards it was found in. complete.json can be lost, truncated or edited at any time: what it
does not say is looked up again.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from qsft.files import publish
from qsft.processes import is_main
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import _sealed

REMEMBERED = "complete.json"
MOST_ENTRIES = 64
# ---- complete.json ----


def is_complete(directory: Path, documents: Documents, shards: Collection[str]) -> bool:
    """Whether an earlier start found every document of `documents` in `shards`, the ones that are there now."""
    memory = _recall(directory)
    needed = memory.get(documents.stamp) or memory.get(documents.digest) if memory else None
    return isinstance(needed, list) and set(shards).issuperset(map(str, needed))


def remember(directory: Path, documents: Documents, shards: Collection[str]) -> None:
    """Note that `documents` are complete in `shards`; a directory that cannot be written is left as it is."""
    if not is_main():
        return
    names = filter(None, (documents.digest, documents.stamp))
    memory = _recall(directory) | dict.fromkeys(names, sorted(shards))
    newest = dict(list(memory.items())[-MOST_ENTRIES:])
    with suppress(OSError):  # read-only, or full: the next start looks again
        publish(directory / REMEMBERED, _sealed({"complete": newest}), what="the teacher cache")


def is_damaged(directory: Path) -> bool:
    """Whether the file is there and not as it was written; it is then ignored."""
    return (directory / REMEMBERED).is_file() and not _recall(directory)


def _recall(directory: Path) -> dict[str | None, Any]:
    """{digest or stamp of documents: shards that hold them}; nothing when the file is not as it was written."""
    try:
        raw = (directory / REMEMBERED).read_bytes() if (directory / REMEMBERED).is_file() else b""
        memory = dict(json.loads(raw)["complete"])
        return memory if _sealed({"complete": memory}) == raw else {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}
