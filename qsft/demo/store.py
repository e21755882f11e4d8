"""Models kept between runs: a directory named by a digest of everything that made it, whole or not there at all."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RECORD = "made_of.json"


def home() -> Path:
    """Where the demo keeps what it need not compute again: $QSFT_HOME/demo, else the user's cache directory."""
    base = os.environ.get("QSFT_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "qsft")
    return Path(base, "demo").expanduser()


def place_of(kind: str, ingredients: Mapping[str, Any]) -> Path:
    """The directory for something made of `ingredients` (JSON-able): other ingredients, another directory."""
    text = json.dumps(ingredients, sort_keys=True)
    return home() / f"{kind}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def is_intact(path: Path) -> bool:
    """Whether the directory holds every file that was put there, byte for byte."""
    try:
        files = json.loads((path / RECORD).read_text(encoding="utf-8"))["files"]
        return bool(files) and all(_digest(path / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # missing, not JSON, or not such a record
        return False


def keep(path: Path, ingredients: Mapping[str, Any], save: Callable[[Path], object]) -> None:
    """Let `save` fill a directory and put it at `path` in one step, in place of a damaged one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        save(unfinished)
        files = {str(file.relative_to(unfinished)): _digest(file) for file in unfinished.rglob("*") if file.is_file()}
        record = {"made_of": dict(ingredients), "files": files}
        (unfinished / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        _publish(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _publish(unfinished: Path, path: Path) -> None:
    if path.exists() and not is_intact(path):
        shutil.rmtree(path)
    try:
        unfinished.rename(path)
    except OSError:
        if not is_intact(path):  # unless another process was first, with the same thing
            raise


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
