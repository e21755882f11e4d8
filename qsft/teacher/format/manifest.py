"""The files that describe a cache: manifest.json, what it is; complete.json, which data sets were found whole in it.

The last line of each is the digest of everything above it, and its bytes are the only way to write its content: any
flipped byte shows. The manifest lists the shards of the last finished capture; what a running or killed one has
published since is read as well, because shards describe themselves.

A start looks every document up once. What it found is remembered under the data's digest and under a stamp of the files
that hold the data, with the shards it was found in: while they are there, the next start costs no pass over the data.
complete.json can be lost, cut or edited at any time: what it does not say is looked up again.
"""

import json
import platform
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from qsft.files import publish
from qsft.fingerprints import digest
from qsft.teacher.format.shards import NAME, READ_VERSIONS, VERSION, Facts, Shard, damaged, published
from qsft.teacher.identity import Identity

MANIFEST = "manifest.json"
FORMAT = "qsft teacher cache"
LARGEST_BYTES = 64 << 20
SIZES = ("documents", "label_tokens", "bytes")  # of a shard
LIBRARIES = ("qsft", "torch", "transformers", "numpy", "safetensors")
LOST_MANIFEST = (
    "The shards are intact and describe themselves: move the file away and rerun `qsft cache build`, "
    "which writes a new one and computes nothing twice."
)


@dataclass(frozen=True)
class Manifest:
    """Identity, library versions, shards {file: its sizes} and measured facts of a cache."""

    identity: Identity
    libraries: dict[str, str] = field(default_factory=dict)
    shards: dict[str, dict[str, int]] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def render(self) -> bytes:
        return _sealed({"format": FORMAT, "version": self.version} | asdict(self))

    def check_sizes(self, directory: Path) -> None:
        for name, entry in self.shards.items():
            path = directory / name
            if not path.is_file():
                raise damaged(path, "the file is missing")
            if path.stat().st_size != entry["bytes"]:
                raise damaged(path, f"it has {path.stat().st_size} bytes, the manifest says {entry['bytes']}")


def read_manifest(directory: Path) -> Manifest:
    path = directory / MANIFEST
    if not path.is_file():
        raise ValueError(f"{directory} is not a teacher cache: it has no {MANIFEST}. `qsft cache build` makes one.")
    if path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{path} is larger than a manifest can be ({path.stat().st_size} bytes).")
    raw = path.read_bytes()
    try:
        content = json.loads(raw)  # takes surrogates, of which names of files may hold some
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}). {LOST_MANIFEST}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} does not describe a {FORMAT}.")
    if content.get("version") not in READ_VERSIONS or type(content["version"]) is not int:
        raise ValueError(
            f"{path} has format version {content.get('version')!r}; this qsft reads versions up to {VERSION}. "
            "Use the qsft that wrote it, or build the cache again in a new directory."
        )
    manifest = _parse(content, path)
    if manifest.render() != raw:
        raise ValueError(f"{path} was altered: its checksum does not match. {LOST_MANIFEST}")
    return manifest


def create_manifest(directory: Path, identity: Identity, version: int = VERSION) -> Manifest:
    """The manifest of a new cache; of captures that start at once exactly one writes it, and all get that one."""
    versions = {name: str(import_module(name).__version__) for name in LIBRARIES}
    manifest = Manifest(identity, {"python": platform.python_version()} | versions, version=version)
    publish(directory / MANIFEST, manifest.render(), exclusive=True, what="the teacher cache")
    return read_manifest(directory)


def recover_manifest(directory: Path) -> bool:
    """Whether there is a manifest, after a lost one was written again: every shard knows the cache's identity."""
    shards = published(directory)
    if shards and not (directory / MANIFEST).is_file():
        first = Shard(shards[0])
        create_manifest(directory, Identity.read(first.identity), first.version)
    return (directory / MANIFEST).is_file()


def refresh_manifest(directory: Path) -> None:
    """Bring the list of shards and the measured facts up to date; nothing is written when they are."""
    if not recover_manifest(directory):
        return
    manifest, shards = read_manifest(directory), [Shard(path) for path in published(directory)]
    sizes = [(len(shard), int(shard.rows.sum()), shard.path.stat().st_size) for shard in shards]
    entries = {shard.path.name: dict(zip(SIZES, size)) for shard, size in zip(shards, sizes)}
    measured = sum((shard.facts for shard in shards), Facts()).summary(sum(size[-1] for size in sizes))
    current = replace(manifest, shards=entries, measured=measured)
    if current != manifest:
        publish(directory / MANIFEST, current.render(), what="the teacher cache")


def _parse(content: dict[str, Any], path: Path) -> Manifest:
    parts = {name: content.get(name) for name in ("libraries", "shards", "measured")}
    try:
        if not all(isinstance(part, dict) for part in parts.values()):
            raise ValueError("libraries, shards and measured must be objects")
        manifest = Manifest(Identity.read(content.get("identity")), **parts, version=content["version"])  # type: ignore[arg-type]
        for name, entry in manifest.shards.items():
            if not NAME.fullmatch(name):  # a plain file of this directory
                raise ValueError(f"it lists {name!r}, which is not the name of a shard")
            sizes = [entry.get(key) for key in SIZES] if isinstance(entry, dict) else [None]
            if not all(type(size) is int and 0 < size < 2**50 for size in sizes):
                raise ValueError(f"it lists impossible sizes for {name}: {entry}")
        if not all(type(value) in (int, float) for value in manifest.measured.values()):
            raise ValueError("it measured something that is no number")
        if not all(isinstance(value, str) for value in manifest.libraries.values()):
            raise ValueError("it names a library's version that is no text")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be right: {error}. {LOST_MANIFEST}") from error
    return manifest


def _sealed(content: dict[str, Any]) -> bytes:
    """JSON with the digest of everything before as its last line."""
    return _render(content | {"checksum": digest(_render(content))})


def _render(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
