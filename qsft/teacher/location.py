"""Where a teacher's cache goes when no directory is given.

Default caches lie outside of OUTPUT_DIR, one directory per identity: a new output_dir captures nothing again, several
teachers live side by side, and no upload of OUTPUT_DIR takes the shards along, which hold training text.

    $QSFT_CACHE, else $QSFT_HOME/caches, else $XDG_CACHE_HOME/qsft, else ~/.cache/qsft
        teachers/<name>-<digest of teacher, tokenizer and settings>/
"""

import os
import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from qsft import fingerprints
from qsft.teacher.identity import Vocabulary
from qsft.teacher.sources.transformers_source import TransformersSource


def cache_home() -> Path:
    for name, below in (("QSFT_CACHE", ""), ("QSFT_HOME", "caches"), ("XDG_CACHE_HOME", "qsft")):
        if os.environ.get(name):
            return Path(os.environ[name], below).expanduser()
    return Path("~/.cache/qsft").expanduser()


def default_cache_directory(source: TransformersSource, tokenizer: PreTrainedTokenizerBase, **settings: Any) -> Path:
    """The directory for a teacher's cache with these settings of `build_cache`, the same wherever its files are.

    Of a hub model the commit decides,
    of a directory the weight files, of a model in memory its weights; the configuration in any case.
    """
    settings = {"top_p": None, "min_k": 1} | settings
    teacher = source.describe()
    is_hub = not source.in_memory and not Path(source.name).is_dir()
    evidence = ("name", "revision") if is_hub else ("weights",) if source.in_memory else ("files",)
    config = teacher["config_file"] or teacher["config"]
    vocabulary = Vocabulary.of(tokenizer).about["digest"]
    identity = [{name: teacher[name] for name in evidence}, config, vocabulary, settings, source.asked_dtype]
    return cache_home() / "teachers" / f"{_slug(source.name)}-{fingerprints.digest_json(identity)[:16]}"


def _slug(name: str) -> str:
    """A teacher's name as part of a directory's: of a path its last folder, of a hub id both parts."""
    short = Path(name).name if Path(name).exists() else name
    return re.sub(r"[^A-Za-z0-9._-]+", "--", short).strip("-.")[-64:] or "teacher"
