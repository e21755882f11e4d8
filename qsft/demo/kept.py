"""Models kept between runs: a directory named by a digest of everything that made it, whole or not there at all."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from qsft.files import read_json, write_json
from qsft.fingerprints import digest, digest_json

RECORD = "made_of.json"


def place_of(kind: str, ingredients: Mapping[str, Any]) -> Path:
    """The directory for something made of `ingredients`, in $QSFT_HOME/demo or the user's cache directory."""
    home = os.environ.get("QSFT_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "qsft")
    return Path(home, "demo").expanduser() / f"{kind}-{digest_json(ingredients)[:16]}"


def is_intact(path: Path) -> bool:
    """Whether the directory holds every file that was put there, byte for byte."""
    try:
        files = read_json(path / RECORD, remedy="")["files"]
        return bool(files) and all(digest((path / name).read_bytes()) == known for name, known in files.items())
    except (OSError, ValueError, KeyError, AttributeError):  # missing, not JSON, or not such a record
        return False


def keep(path: Path, save: Callable[[Path], Mapping[str, Any]]) -> None:
    """Let `save` fill a directory and put it at `path` in one step; what it returns is for `remembered`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        said = dict(save(unfinished))
        files = {str(f.relative_to(unfinished)): digest(f.read_bytes()) for f in unfinished.rglob("*") if f.is_file()}
        write_json(unfinished / RECORD, {"remembered": said, "files": files})
        if path.exists() and not is_intact(path):
            shutil.rmtree(path)
        try:
            unfinished.rename(path)
        except OSError:
            if not is_intact(path):  # unless another process was first, with the same thing
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def remembered(path: Path) -> dict[str, Any]:
    """What was said about the making of a kept directory."""
    return dict(read_json(path / RECORD, remedy="Delete the directory; it is made again.")["remembered"])
