"""Is a cache what was written? Every checksum and every bound of every file, and what to drop when not."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from qsft.fingerprints import digest, file_digest
from qsft.teacher.documents import document_key
from qsft.teacher.identity import VOCABULARY, Identity
from qsft.teacher.manifest import MANIFEST, Manifest, read_manifest, recover_manifest, refresh_manifest
from qsft.teacher.remembered import REMEMBERED, is_damaged
from qsft.teacher.shards import DamagedShard, Shard, damaged, published


class ForeignShard(ValueError):
    """A shard that is sound in itself, but not of the capture that the manifest describes."""


@dataclass
class Verification:
    """What was read and what is wrong with it: {file: why}, empty when the cache is sound.

    `foreign` names the problems that are not damage: shards whose bytes are right. They are never removed.
    """

    path: Path
    documents: int = 0
    label_tokens: int = 0
    bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)

    @property
    def ok(self) -> bool:
        """Whether every file is what was written."""
        return not self.problems

    def drop(self) -> int:
        """Remove the damaged files and bring the manifest up to date; how many documents are still there.

        Building the cache again computes what the removed shards held, and nothing else.
        """
        for name in set(self.problems) - self.foreign:
            path = self.path / name
            with suppress(OSError):  # a directory that is not empty is not ours to remove
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        left = [path for path in published(self.path) if path.is_file()]
        if len(left) == len(published(self.path)) and not self.foreign:
            recover_manifest(self.path)
            if (self.path / MANIFEST).is_file():
                refresh_manifest(self.path)
        return sum(len(Shard(path)) for path in left)


def verify_cache(path: str | Path) -> Verification:
    """Read every byte of a cache and compare it with its checksums; a cache that cannot be opened is read too."""
    report = Verification(Path(path))
    manifest = _manifest(report)
    for shard in published(report.path):
        report.bytes += shard.stat().st_size
        try:
            documents, rows = _check_shard(shard, manifest)
            report.documents += documents
            report.label_tokens += rows
        except ForeignShard as error:
            report.foreign.add(shard.name)
            report.problems[shard.name] = str(error)
        except DamagedShard as error:
            report.problems[shard.name] = str(error)
    _check_sizes(report, manifest)
    return report


def _manifest(report: Verification) -> Manifest | None:
    """The manifest, after it and the files beside it were checked; their problems go into the report."""
    if is_damaged(report.path):
        report.problems[REMEMBERED] = f"{report.path / REMEMBERED} is not as written; it is ignored and rewritten."
    try:
        manifest = read_manifest(report.path)
    except ValueError as error:
        report.problems[MANIFEST] = str(error)
        return None
    vocabulary = report.path / VOCABULARY
    if not vocabulary.is_file() or digest(vocabulary.read_bytes()) != manifest.identity.tokenizer.get("digest"):
        report.problems[VOCABULARY] = (
            f"{vocabulary} is not the vocabulary the manifest names; the next build restores it."
        )
    for name in manifest.shards:
        if not (report.path / name).exists():
            report.problems[name] = str(damaged(report.path / name, "the file is missing"))
    return manifest


def _check_sizes(report: Verification, manifest: Manifest | None) -> None:
    """A listed size that is not the size of a sound shard is the manifest's fault; it can be written anew."""
    for name, entry in manifest.shards.items() if manifest is not None else ():
        if name not in report.problems and (report.path / name).stat().st_size != entry["bytes"]:
            report.problems[MANIFEST] = f"{report.path / MANIFEST} states a wrong size of {name}, which is sound."


def _check_shard(path: Path, manifest: Manifest | None) -> tuple[int, int]:
    """Documents and rows of a sound shard; DamagedShard or ForeignShard for any other."""
    if not path.is_file():
        raise damaged(path, "it is not a regular file")
    if file_digest(path) != path.stem:
        raise damaged(path, "its bytes do not have the digest that is its name")
    shard = Shard(path)
    try:
        identity = Identity.read(shard.identity)
    except ValueError as error:
        raise damaged(path, str(error)) from error
    codec = identity.codec(shard.version)
    shard.check_sizes(codec)
    for document in range(len(shard)):
        shard.read(document, codec)
    for why in _wrong_samples(shard):
        raise damaged(path, why)
    if manifest is not None and (shard.version, identity) != (manifest.version, manifest.identity):
        raise ForeignShard(
            f"shard {path.name} of the teacher cache {path.parent} is sound, but {MANIFEST} describes another capture "
            "(teacher, k, encoding or version). One of the two is out of place, so --drop removes neither: move the "
            f"shard to the cache it came from, or {MANIFEST} away, which is then written anew from the shards."
        )
    return len(shard), int(shard.rows.sum())


def _wrong_samples(shard: Shard) -> Iterator[str]:
    """A document kept whole must be one of the shard's own."""
    keys = {key.tobytes() for key in shard.keys}
    for place, (input_ids, labels) in enumerate(shard.sample()):
        if document_key(input_ids, labels) not in keys:
            yield f"its sample document {place} is none of its documents"
