"""A directory with a seal: a JSON file, written last, that lists the size and digest of every other file.

Without its seal a directory is incomplete. With it, a missing, truncated or altered file is found by name.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from qsft.files import TEMPORARY, read_json, write_json
from qsft.fingerprints import digest_json, file_digest

HASHING_THREADS = 8  # hashlib releases the interpreter lock


def seal(directory: Path, seal_name: str, content: Mapping[str, Any], *, digests: bool = True) -> None:
    """Write the seal of a directory whose files are complete.

    Args:
        content: what the seal records beside the list of files.
        digests: whether to read every file for its digest; otherwise only sizes are recorded.
    """
    sealed = {**content, "files": _list_files(directory, seal_name, digests)}
    write_json(directory / seal_name, {**sealed, "checksum": digest_json(sealed)})


def read_seal(directory: Path, seal_name: str) -> dict[str, Any]:
    """Return what the seal records. Raises ValueError when it is missing or damaged."""
    file = directory / seal_name
    if not file.is_file():
        raise ValueError(f"{seal_name} is missing")
    try:
        content = read_json(file, "")
    except ValueError:
        raise ValueError(f"{seal_name} is damaged") from None
    if content.pop("checksum", None) != digest_json(content):
        raise ValueError(f"{seal_name} is damaged")
    return content


def find_damage(directory: Path, seal_name: str, *, digests: bool = True) -> list[str]:
    """Describe every difference between the files and the seal; empty when there is none.

    Args:
        digests: whether to read every file and compare digests; otherwise only sizes are compared.
    """
    try:
        expected = read_seal(directory, seal_name)["files"]
    except ValueError as error:
        return [str(error)]
    compare_digests = digests and all(entry["digest"] for entry in expected.values())
    found = _list_files(directory, seal_name, compare_digests)
    damage = []
    for name, entry in expected.items():
        if name not in found:
            damage.append(f"{name} is missing")
        elif found[name]["bytes"] != entry["bytes"]:
            damage.append(f"{name} has {found[name]['bytes']} bytes instead of {entry['bytes']}")
        elif compare_digests and found[name]["digest"] != entry["digest"]:
            damage.append(f"{name} was altered after it was saved")
    return damage


def _list_files(directory: Path, seal_name: str, digests: bool) -> dict[str, dict[str, Any]]:
    files = [
        file
        for file in sorted(directory.rglob("*"))
        if file.is_file() and file != directory / seal_name and not file.name.endswith(TEMPORARY)
    ]
    file_digests: list[str | None] = [None] * len(files)
    if digests:
        with ThreadPoolExecutor(HASHING_THREADS) as pool:
            file_digests = list(pool.map(file_digest, files))
    return {
        file.relative_to(directory).as_posix(): {"bytes": file.stat().st_size, "digest": digest}
        for file, digest in zip(files, file_digests, strict=True)
    }
