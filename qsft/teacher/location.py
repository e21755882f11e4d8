"""Where caches live when nobody says otherwise: outside of OUTPUT_DIR, one folder per identity.

    $QSFT_CACHE, else $QSFT_HOME/caches, else $XDG_CACHE_HOME/qsft, else ~/.cache/qsft
        teachers/<name>-<digest of teacher, tokenizer, k, encoding>/

A new output_dir captures nothing again, several teachers live side by side, and no upload of OUTPUT_DIR takes the
shards along, which hold training text.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.fingerprints import digest_json
from qsft.teacher.identity import Vocabulary, teacher_difference
from qsft.teacher.manifest import MANIFEST, read_manifest
from qsft.teacher.source import TeacherSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEFTOVER = "teacher_cache"  # where caches lay before: inside of OUTPUT_DIR


def cache_home() -> Path:
    """The directory of all caches of this user."""
    if os.environ.get("QSFT_CACHE"):
        return Path(os.environ["QSFT_CACHE"]).expanduser()
    if os.environ.get("QSFT_HOME"):
        return Path(os.environ["QSFT_HOME"]).expanduser() / "caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "qsft"


def default_cache(
    source: TeacherSource,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    k: int,
    encoding: str,
    top_p: float | None = None,
    min_k: int = 1,
    output_dir: str | Path | None = None,
) -> Path:
    """The directory for a teacher's cache with these settings, the same on every machine with the same files.

    A matching OUTPUT_DIR/teacher_cache of an earlier version is used where it is. Of a hub model the commit decides,
    of a directory the weight files, of a model in memory its weights; the configuration in any case.
    """
    settings = {"k": k, "encoding": encoding, "top_p": top_p, "min_k": min_k}
    teacher = source.describe()
    if output_dir is not None and _matches(Path(output_dir, LEFTOVER), teacher, settings | source.asked_dtype):
        return Path(output_dir, LEFTOVER)
    is_hub = not source.in_memory and not Path(source.name).is_dir()
    evidence = ("name", "revision") if is_hub else ("weights",) if source.in_memory else ("files",)
    config = teacher["config_file"] or teacher["config"]
    vocabulary = Vocabulary.of(tokenizer).about["digest"]
    identity = [{name: teacher[name] for name in evidence}, config, vocabulary, settings, source.asked_dtype]
    return cache_home() / "teachers" / f"{_slug(source.name)}-{digest_json(identity)[:16]}"


def _matches(directory: Path, teacher: dict[str, Any], settings: dict[str, Any]) -> bool:
    """Whether a cache is there that this teacher may continue under these settings."""
    if not (directory / MANIFEST).is_file():
        return False
    identity = read_manifest(directory).identity
    wanted = settings | {"k": min(settings["k"], identity.vocab_size)}
    same = all(getattr(identity, name) == value for name, value in wanted.items())
    return same and teacher_difference(identity.teacher, teacher) is None


def _slug(name: str) -> str:
    """A teacher's name as part of a directory's: of a path its last folder, of a hub id both parts."""
    short = Path(name).name if Path(name).exists() else name
    return re.sub(r"[^A-Za-z0-9._-]+", "--", short).strip("-.")[-64:] or "teacher"
