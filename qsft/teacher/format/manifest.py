"""manifest.json: what a cache is.

The manifest lists the shards of the last finished capture. What a running or killed capture has published since is read
as well, because shards describe themselves. Its last entry is the digest of everything before it.
"""

import errno
import json
import platform
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from qsft.files import publish, too_long_message
from qsft.fingerprints import digest
from qsft.teacher.format.shards import SHARD_NAME, VERSION, DamagedShard, Shard, ShardStatistics, published_shards
from qsft.teacher.identity import Identity

MANIFEST = "manifest.json"
FORMAT = "qsft teacher cache"
LARGEST_BYTES = 64 << 20
SHARD_SIZES = ("documents", "label_tokens", "bytes")
LIBRARIES = ("qsft", "torch", "transformers", "numpy", "safetensors")
LOST_MANIFEST = (
    "The shards are intact and describe themselves: move the file away and rerun `qsft cache build`, "
    "which writes a new one and computes nothing twice."
)


@dataclass(frozen=True)
class Manifest:
    """Identity, library versions, shards {file: its sizes} and statistics of a cache."""

    identity: Identity
    libraries: dict[str, str] = field(default_factory=dict)
    shards: dict[str, dict[str, int]] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return sealed_json({"format": FORMAT, "version": VERSION, **asdict(self)})

    def check_sizes(self, directory: Path) -> None:
        """Raise DamagedShard if a listed shard is missing or has another size."""
        for name, entry in self.shards.items():
            path = directory / name
            if not path.is_file():
                raise DamagedShard(path, "the file is missing")
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise DamagedShard(path, f"it has {size} bytes, the manifest says {entry['bytes']}")


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a cache; ValueError when the directory holds none, or one that was altered."""
    path = directory / MANIFEST
    if not is_cache(directory):
        if not directory.is_dir():
            raise ValueError(f"there is no teacher cache {directory}: the directory does not exist. Check the path.")
        raise ValueError(f"{directory} is not a teacher cache: it has no {MANIFEST}. `qsft cache build` makes one.")
    if path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{path} is larger than a manifest can be ({path.stat().st_size} bytes). {LOST_MANIFEST}")
    raw = path.read_bytes()
    try:
        content = json.loads(raw)  # accepts the surrogates that file names may contain
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}). {LOST_MANIFEST}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} does not describe a {FORMAT}. Check the path of the cache.")
    if type(content.get("version")) is not int or content["version"] != VERSION:
        raise ValueError(
            f"{path} has format version {content.get('version')!r}; this qsft reads version {VERSION}. "
            "Use the qsft that wrote it, or remove the directory and build the cache again."
        )
    manifest = _parse(content, path)
    if manifest.to_bytes() != raw:
        raise ValueError(f"{path} was altered: its checksum does not match. {LOST_MANIFEST}")
    return manifest


def is_cache(directory: str | Path) -> bool:
    """Whether a directory holds the manifest of a teacher cache."""
    try:
        return Path(directory, MANIFEST).is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ValueError(too_long_message(directory)) from error
        raise


def create_manifest(directory: Path, identity: Identity) -> Manifest:
    """The manifest of a new cache. Of captures that start at once exactly one writes it, and all return that one."""
    versions = {name: str(import_module(name).__version__) for name in LIBRARIES}
    manifest = Manifest(identity, {"python": platform.python_version(), **versions})
    publish(directory / MANIFEST, manifest.to_bytes(), exclusive=True, what="the teacher cache")
    return read_manifest(directory)


def recover_manifest(directory: Path) -> bool:
    """Whether there is a manifest, after a lost one was written again: every shard knows the cache's identity."""
    if is_cache(directory):
        return True
    shards = published_shards(directory)
    if not shards:
        return False
    create_manifest(directory, Identity.from_json(Shard(shards[0]).identity))
    return True


def refresh_manifest(directory: Path) -> None:
    """Bring the list of shards and the statistics up to date; nothing is written when they are."""
    if not recover_manifest(directory):
        return
    manifest = read_manifest(directory)
    entries = {}
    statistics = ShardStatistics()
    for path in published_shards(directory):
        shard = Shard(path)
        entries[path.name] = {
            "documents": len(shard),
            "label_tokens": int(shard.positions.sum()),
            "bytes": path.stat().st_size,
        }
        statistics += shard.statistics
    total_bytes = sum(entry["bytes"] for entry in entries.values())
    current = replace(manifest, shards=entries, measured=statistics.summary(total_bytes))
    if current != manifest:
        publish(directory / MANIFEST, current.to_bytes(), what="the teacher cache")


def _parse(content: dict[str, Any], path: Path) -> Manifest:
    try:
        parts = {name: content.get(name) for name in ("libraries", "shards", "measured")}
        if not all(isinstance(part, dict) for part in parts.values()):
            raise ValueError("libraries, shards and measured must be objects")
        manifest = Manifest(Identity.from_json(content.get("identity")), **parts)  # type: ignore[arg-type]
        for name, entry in manifest.shards.items():
            _check_entry(name, entry)
        if not all(type(value) in (int, float) for value in manifest.measured.values()):
            raise ValueError("it measured something that is not a number")
        if not all(isinstance(value, str) for value in manifest.libraries.values()):
            raise ValueError("a library's version is not a string")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is invalid: {error}. {LOST_MANIFEST}") from error
    return manifest


def _check_entry(name: str, entry: object) -> None:
    if not SHARD_NAME.fullmatch(name):  # only plain files of this directory
        raise ValueError(f"it lists {name!r}, which is not the name of a shard")
    sizes = [entry.get(key) for key in SHARD_SIZES] if isinstance(entry, dict) else [None]
    if not all(type(size) is int and 0 < size < 2**50 for size in sizes):
        raise ValueError(f"it lists impossible sizes for {name}: {entry}")


def sealed_json(content: dict[str, Any]) -> bytes:
    """JSON with the digest of everything before as its last entry."""
    return render_json(content | {"checksum": digest(render_json(content))})


def render_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
