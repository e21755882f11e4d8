"""Directories that the demo keeps between runs: complete or absent, named by a digest of what they are made of."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qsft.fingerprints import digest_json
from qsft.sealed_directory import find_damage, read_seal, seal
from qsft.teacher.location import cache_home

SEAL = "made_of.json"


def kept_path(kind: str, ingredients: Mapping[str, Any]) -> Path:
    """Return the directory for something made of `ingredients`, below the directory of all that qsft caches."""
    return cache_home() / "demo" / f"{kind}-{digest_json(ingredients)[:16]}"


def is_intact(path: Path) -> bool:
    """Return whether the directory holds every file that was put there, byte for byte."""
    return not find_damage(path, SEAL)


def read_notes(path: Path) -> dict[str, Any]:
    """Return what `keep` recorded about an intact directory."""
    notes: dict[str, Any] = read_seal(path, SEAL)["notes"]
    return notes


def keep(path: Path, fill: Callable[[Path], Mapping[str, Any]]) -> None:
    """Fill a directory and put it at `path` in one step, replacing a damaged one.

    Args:
        fill: writes the files into the directory it is given; what it returns is recorded with them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
        unfinished = Path(scratch, path.name)
        unfinished.mkdir()
        notes = fill(unfinished)
        seal(unfinished, SEAL, {"notes": notes})
        if path.exists() and not is_intact(path):
            shutil.rmtree(path)
        try:
            unfinished.rename(path)
        except OSError:
            # Another process may have put the same thing there first.
            if not is_intact(path):
                raise
