"""complete.json, beside the manifest: which prepared data sets are complete in this cache.

A start looks every document up once. What it found is remembered under the data's digest, with the shards it was found
in: while they are there, the next start costs no pass over the data. The digest itself is remembered under a stamp of
the files that hold the data. The file can be lost, cut or edited at any time: what it does not say is looked up again.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from qsft.files import publish
from qsft.fingerprints import digest_json
from qsft.processes import is_main
from qsft.teacher.documents import Documents

REMEMBERED = "complete.json"
NAMES = ("complete", "stamps")
MOST_ENTRIES = 64


def is_complete(directory: Path, documents: Documents, shards: Collection[str]) -> bool:
    """Whether an earlier start found every document of `documents` in `shards`, the ones that are there now."""
    memory = _read(directory)
    digest = memory["stamps"].get(documents.stamp) if documents.stamp else None
    entry = memory["complete"].get(digest or documents.digest) if memory["complete"] else None
    needed = entry.get("shards") if isinstance(entry, dict) else None
    return isinstance(needed, list) and set(shards).issuperset(map(str, needed))


def remember(directory: Path, documents: Documents, shards: Collection[str]) -> None:
    """Note that `documents` are complete in `shards`; a directory that cannot be written is left as it is."""
    if not is_main():
        return
    memory = _read(directory)
    memory["complete"][documents.digest] = {"documents": len(documents), "shards": sorted(shards)}
    if documents.stamp:
        memory["stamps"][documents.stamp] = documents.digest
    newest = {name: dict(list(entries.items())[-MOST_ENTRIES:]) for name, entries in memory.items()}
    with suppress(OSError):  # read-only, or full: the next start looks again
        publish(directory / REMEMBERED, _render(newest), what="the teacher cache")


def is_damaged(directory: Path) -> bool:
    """Whether the file is there and not as it was written; it is then ignored."""
    return (directory / REMEMBERED).is_file() and not any(_read(directory).values())


def _read(directory: Path) -> dict[str, dict[str, Any]]:
    try:
        raw = (directory / REMEMBERED).read_bytes() if (directory / REMEMBERED).is_file() else b""
        content = {name: dict(json.loads(raw)[name]) for name in NAMES}
        if _render(content) == raw:
            return content
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    return {name: {} for name in NAMES}


def _render(content: dict[str, dict[str, Any]]) -> bytes:
    return json.dumps({**content, "checksum": digest_json(content)}, indent=1).encode() + b"\n"
