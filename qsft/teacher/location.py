"""Where a teacher's cache goes when no directory is given, and which default caches exist.

Default caches lie outside of OUTPUT_DIR, one directory per identity: a new output_dir captures nothing again, several
teachers live side by side, and no upload of OUTPUT_DIR takes the shards along, which hold training text.

    $QSFT_CACHE, else $QSFT_HOME/caches, else $XDG_CACHE_HOME/qsft, else ~/.cache/qsft
        teachers/<name>-<digest of teacher, tokenizer and settings>/
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from qsft.files import TEMPORARY
from qsft.fingerprints import digest_json
from qsft.teacher.format.complete import COMPLETE, read_complete
from qsft.teacher.format.manifest import MANIFEST, is_cache, read_manifest
from qsft.teacher.format.shards import SHARD_NAME, VERSION, published_shards
from qsft.teacher.sources.source import TeacherSource
from qsft.teacher.vocabulary import VOCABULARY, Vocabulary
from qsft.validation import counted

LONGEST_NAME = 64


def cache_home() -> Path:
    """The directory for everything that qsft caches."""
    for variable, subdirectory in (("QSFT_CACHE", ""), ("QSFT_HOME", "caches"), ("XDG_CACHE_HOME", "qsft")):
        if os.environ.get(variable):
            return Path(os.environ[variable], subdirectory).expanduser()
    return Path("~/.cache/qsft").expanduser()


def default_cache_root() -> Path:
    """The directory that holds the default caches of all teachers."""
    return cache_home() / "teachers"


def default_cache_directory(
    source: TeacherSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    top_k: int,
    cache_encoding: str,
    top_p: float | None = None,
    min_k: int = 1,
) -> Path:
    """Return the directory for a teacher's cache with these settings, the same wherever the teacher's files lie.

    A new format of caches has other directories, so that a cache of an earlier format is not in the way.
    """
    settings: dict[str, Any] = {"top_k": top_k, "cache_encoding": cache_encoding, "top_p": top_p, "min_k": min_k}
    key = digest_json([VERSION, source.location_key(), Vocabulary.of(tokenizer).about["digest"], settings])
    return default_cache_root() / f"{_directory_name(source.name)}-{key[:16]}"


def _directory_name(name: str) -> str:
    """A teacher's name as part of a directory's: of a path its last folder, of a Hub id both parts."""
    short = Path(name).name if Path(name).exists() else name
    return re.sub(r"[^A-Za-z0-9._-]+", "--", short).strip("-.")[-LONGEST_NAME:] or "teacher"


@dataclass(frozen=True)
class CacheSummary:
    """A cache as `qsft cache list` shows it."""

    path: Path
    teacher: str
    settings: str
    bytes: int
    last_use: datetime
    data: list[str]


def list_caches(root: Path) -> list[CacheSummary]:
    """The caches directly below `root`, the least recently used first."""
    if not root.is_dir():
        return []
    summaries = [summarize_cache(path) for path in root.iterdir() if path.is_dir() and _holds_cache(path)]
    return sorted(summaries, key=lambda summary: summary.last_use)


def summarize_cache(path: Path) -> CacheSummary:
    """Describe a cache without opening its shards; a damaged manifest is shown as such."""
    shards = published_shards(path)
    try:
        identity = read_manifest(path).identity
        teacher = str(identity.teacher["name"])
        settings = f"{identity.dtype}, {identity.cache_encoding}, k={identity.top_k}"
        if identity.teacher.get("loading"):
            settings += ", " + ", ".join(identity.teacher["loading"])
    except ValueError:
        teacher = "unknown (its manifest cannot be read)"
        settings = ""
    complete = read_complete(path).values()
    uses = [datetime.fromisoformat(entry.last_use) for entry in complete]
    written = [datetime.fromtimestamp(file.stat().st_mtime, UTC) for file in path.iterdir()]
    data = [f"{entry.name} ({counted(entry.documents, 'document')})" for entry in complete]
    return CacheSummary(
        path=path,
        teacher=teacher,
        settings=settings,
        bytes=sum(file.stat().st_size for file in path.iterdir() if file.is_file()),
        last_use=max(uses or written or [datetime.fromtimestamp(0, UTC)]),
        data=data or [counted(len(shards), "shard")],
    )


def remove_cache(path: Path) -> None:
    """Remove the files of a cache, and its directory unless something else lies in it."""
    for file in path.iterdir():
        is_ours = file.name in (MANIFEST, COMPLETE, VOCABULARY) or SHARD_NAME.fullmatch(file.name)
        if is_ours or file.name.endswith(TEMPORARY):
            file.unlink()
    with suppress(OSError):  # not empty
        path.rmdir()


def _holds_cache(path: Path) -> bool:
    return is_cache(path) or bool(published_shards(path))
