"""Is a cache what was written? Every checksum and every bound of every file, and what to drop when not."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from qsft.teacher.format import document_key
from qsft.teacher.identity import VOCABULARY, Identity
from qsft.teacher.manifest import FILE, Manifest, read_manifest, recover_manifest, refresh_manifest
from qsft.teacher.publish import digest
from qsft.teacher.shard import DamagedShard, Shard, damaged, published


@dataclass
class Verification:
    """What was read and what is wrong with it: {file: why}, empty when the cache is sound."""

    path: Path
    documents: int = 0
    label_tokens: int = 0
    bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every file is what was written."""
        return not self.problems

    def drop(self) -> int:
        """Remove the damaged files and bring the manifest up to date; how many documents are still there.

        Building the cache again computes what the removed shards held, and nothing else.
        """
        for name in self.problems:
            (self.path / name).unlink(missing_ok=True)
        recover_manifest(self.path)
        if (self.path / FILE).is_file():
            refresh_manifest(self.path)
        return sum(len(Shard(path)) for path in published(self.path))


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
        except DamagedShard as error:
            report.problems[shard.name] = str(error)
    return report


def _manifest(report: Verification) -> Manifest | None:
    """The manifest, after it and the vocabulary were checked; its problems go into the report."""
    try:
        manifest = read_manifest(report.path)
    except ValueError as error:
        report.problems[FILE] = str(error)
        return None
    vocabulary = report.path / VOCABULARY
    if not vocabulary.is_file() or digest(vocabulary.read_bytes()) != manifest.identity.tokenizer.get("digest"):
        report.problems[VOCABULARY] = (
            f"{vocabulary} is not the vocabulary the manifest names; the next build restores it."
        )
    for name in manifest.shards:
        if not (report.path / name).is_file():
            report.problems[name] = str(damaged(report.path / name, "the file is missing"))
    return manifest


def _check_shard(path: Path, manifest: Manifest | None) -> tuple[int, int]:
    """Documents and rows of a sound shard; DamagedShard for any other."""
    with open(path, "rb") as file:
        content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    if content != path.stem:
        raise damaged(path, "its bytes do not have the digest that is its name")
    shard = Shard(path)
    try:
        identity = Identity.read(shard.identity)
    except ValueError as error:
        raise damaged(path, str(error)) from error
    if manifest is not None and identity != manifest.identity:
        raise damaged(path, "it was made by another capture than the manifest's (teacher, k or encoding)")
    for document in range(len(shard)):
        shard.read(document, identity.codec)
    for why in _wrong_samples(shard):
        raise damaged(path, why)
    return len(shard), int(shard.rows.sum())


def _wrong_samples(shard: Shard) -> Iterator[str]:
    """A document kept whole must be one of the shard's own."""
    keys = {key.tobytes() for key in shard.keys}
    for place, (input_ids, labels) in enumerate(shard.sample()):
        if document_key(input_ids, labels) not in keys:
            yield f"its sample document {place} is none of its documents"
