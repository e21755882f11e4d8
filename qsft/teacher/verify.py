"""Checks of a cache's files: whether they are as they were written."""

from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from qsft.files import shown
from qsft.fingerprints import digest, file_digest
from qsft.progress import Progress
from qsft.teacher.documents import document_key
from qsft.teacher.format.complete import COMPLETE, is_damaged
from qsft.teacher.format.manifest import MANIFEST, Manifest, read_manifest, refresh_manifest
from qsft.teacher.format.shards import VERSION, DamagedShard, Shard, UnusableShard, published_shards, shard_title
from qsft.teacher.identity import Identity
from qsft.teacher.vocabulary import VOCABULARY


@dataclass
class Verification:
    """What was read of a cache, and what is wrong with it.

    problems   {file: what is wrong}, empty when the cache is sound
    kept       those of them whose bytes are as written, which are never removed
    """

    path: Path
    documents: int = 0
    label_tokens: int = 0
    bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        return not self.problems

    def drop(self) -> int:
        """Remove the damaged files and bring the manifest up to date; return the number of sound documents left."""
        for name in set(self.problems) - self.kept:
            path = self.path / name
            with suppress(OSError):  # a directory that is not empty is not ours to remove
                if path.is_dir():
                    path.rmdir()
                else:
                    path.unlink(missing_ok=True)
        if not self.kept and all(path.is_file() for path in published_shards(self.path)):
            refresh_manifest(self.path)
        return self.documents


def verify_cache(path: str | Path, *, progress: bool = False) -> Verification:
    """Read every byte of a cache and compare it with its checksums, also of a cache that cannot be opened."""
    report = Verification(Path(path))
    if not report.path.is_dir():
        raise ValueError(f"there is no directory {path}, so nothing to verify. `qsft cache build` makes a cache.")
    manifest = _check_manifest(report)
    shards = published_shards(report.path)
    with Progress(f"verify {shown(report.path)}", len(shards), "shards", show=progress) as bar:
        for shard_path in shards:
            report.bytes += shard_path.stat().st_size
            _check_shard(report, shard_path, manifest)
            bar.advance(text=f"{bar.per_second(report.bytes / 1e6):,.0f} MB/s")
    if manifest is not None:
        for name, entry in manifest.shards.items():
            # A listed size that is not the size of a sound shard is the manifest's fault; it can be written anew.
            if name not in report.problems and (report.path / name).stat().st_size != entry["bytes"]:
                report.problems[MANIFEST] = f"{report.path / MANIFEST} states a wrong size of {name}, which is sound."
    return report


def _check_shard(report: Verification, path: Path, manifest: Manifest | None) -> None:
    try:
        shard = _open_sound_shard(path, manifest)
    except DamagedShard as error:
        report.problems[path.name] = str(error)
    except UnusableShard as error:
        report.problems[path.name] = str(error)
        report.kept.add(path.name)
    else:
        report.documents += len(shard)
        report.label_tokens += int(shard.positions.sum())


def _check_manifest(report: Verification) -> Manifest | None:
    """The manifest, after it and the files beside it were checked; their problems go into the report."""
    if is_damaged(report.path):
        report.problems[COMPLETE] = f"{report.path / COMPLETE} is not as written; it is ignored and rewritten."
    try:
        manifest = read_manifest(report.path)
    except ValueError as error:
        report.problems[MANIFEST] = str(error)
        return None
    vocabulary = report.path / VOCABULARY
    if not vocabulary.is_file() or digest(vocabulary.read_bytes()) != manifest.identity.tokenizer.get("digest"):
        report.problems[VOCABULARY] = f"{vocabulary} is not the manifest's vocabulary; the next build restores it."
    for name in manifest.shards:
        if not (report.path / name).exists():
            report.problems[name] = str(DamagedShard(report.path / name, "the file is missing"))
    return manifest


def _open_sound_shard(path: Path, manifest: Manifest | None) -> Shard:
    """A shard of which every document can be read; DamagedShard or UnusableShard for any other."""
    if not path.is_file():
        raise DamagedShard(path, "it is not a regular file")
    if file_digest(path) != path.stem:
        raise DamagedShard(path, "its bytes do not have the digest that is its name")
    try:
        shard = Shard(path)
        codec = Identity.from_json(shard.identity).codec()
        shard.check_sizes(codec)
        for document in range(len(shard)):
            shard.read(document, codec)
        keys = {key.tobytes() for key in shard.keys}
        for number, sampled in enumerate(shard.sample()):
            if document_key(*sampled) not in keys:
                raise DamagedShard(path, f"its sample document {number} is not one of its documents")
    except ValueError as error:
        reason = error.reason if isinstance(error, DamagedShard) else error
        raise UnusableShard(
            f"{shard_title(path)} has the digest that is its name, so it is as it was written, but no capture wrote "
            f"it: {reason}. A rebuild would not restore it, so --drop leaves it: find out who wrote it, move it away, "
            "then rerun the same `qsft cache build`, which computes its documents again."
        ) from error
    if manifest is not None:
        shard.check_belongs_to(VERSION, asdict(manifest.identity))
    return shard
