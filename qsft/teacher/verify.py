"""Checks of a cache: whether its files are as they were written, and whether they agree with the teacher.

`verify_cache` checks every checksum and bound of every file. `compare_with_teacher` computes sampled documents again
with the model's own forward, not with the projection that made the cache, and compares them with the cached log-probs
at shifts −1, 0 and +1: in a correct cache the KL is nearly 0 at shift 0 only. Every document counts by itself: a few
wrong ones do not disappear in a mean.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from qsft.files import shown
from qsft.fingerprints import digest, file_digest
from qsft.inference.loading import input_device
from qsft.losses.evaluation_mode import evaluating
from qsft.progress import Progress
from qsft.targets.view import TopK
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import document_key, label_positions
from qsft.teacher.format.complete import COMPLETE, is_damaged
from qsft.teacher.format.manifest import MANIFEST, Manifest, read_manifest, refresh_manifest
from qsft.teacher.format.shards import VERSION, DamagedShard, Shard, UnusableShard, published_shards, shard_title
from qsft.teacher.identity import VOCABULARY, Identity
from qsft.teacher.log_probs import own_logits

SHIFTS = (-1, 0, 1)
CONFIDENCE = 0.95
Sampled = tuple[np.ndarray, np.ndarray]  # input_ids and labels of a document


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


# ---- against the teacher ----


class Agreement(NamedTuple):
    """Cached log-probs against the teacher's `shift` positions later: mean KL, share of equal likeliest tokens."""

    shift: int
    kl: float
    top1: float
    label_tokens: int


@dataclass(frozen=True)
class SpotCheck:
    """One Agreement per shift, and the mean KL of every sampled document at shift 0."""

    table: list[Agreement]
    document_kl: list[float]

    def differing(self, tolerance: float) -> int:
        """How many sampled documents differ from the teacher by more than `tolerance`, or by NaN."""
        return sum(not kl <= tolerance for kl in self.document_kl)

    def is_aligned(self, tolerance: float) -> bool:
        """Whether every sampled document agrees with the teacher, and better at shift 0 than at any other."""
        unshifted = next(agreement for agreement in self.table if agreement.shift == 0)
        shifted = [agreement.kl for agreement in self.table if agreement.shift != 0 and agreement.label_tokens]
        return not self.differing(tolerance) and all(unshifted.kl < kl for kl in shifted)

    @property
    def undetected_share(self) -> float:
        """The share of wrong documents that a sample of this size would have missed with probability 1 − CONFIDENCE."""
        return 1.0 if not self.document_kl else 1 - (1 - CONFIDENCE) ** (1 / len(self.document_kl))


def sample_documents(cache: TeacherCache, count: int, seed: int = 0) -> list[Sampled]:
    """Up to `count` random documents of those the cache keeps complete, from as many shards as possible."""
    rng = np.random.default_rng(seed)
    shuffled_shards = []
    for shard in rng.permutation(len(cache.shards)):
        sample = cache.shards[shard].sample()
        shuffled_shards.append([sample[i] for i in rng.permutation(len(sample))])
    one_of_each_in_turn = chain.from_iterable(zip_longest(*shuffled_shards))
    return list(islice(filter(None, one_of_each_in_turn), count))


@torch.no_grad()
def compare_with_teacher(cache: TeacherCache, model: nn.Module, documents: Sequence[Sampled]) -> SpotCheck:
    """Compare cached log-probs with the model's own logits, at the label positions that exist when shifted."""
    found: dict[int, list[tuple[Tensor, Tensor]]] = {shift: [] for shift in SHIFTS}
    for input_ids, labels in documents:
        cached = cache.lookup(input_ids, labels)
        positions = label_positions(labels)
        tokens = torch.from_numpy(input_ids.astype(np.int64))[None].to(input_device(model))
        with evaluating(model):
            logits = own_logits(model, {"input_ids": tokens}).cpu()
        for shift in SHIFTS:
            inside = (positions + shift >= 1) & (positions + shift < len(input_ids))
            predicting = torch.from_numpy(positions[inside] + shift - 1)
            found[shift].append(_compare(logits[predicting].log_softmax(dim=-1), cached[torch.from_numpy(inside)]))
    table = []
    for shift, pairs in found.items():
        kl = torch.cat([pair[0] for pair in pairs])
        same_top1 = torch.cat([pair[1] for pair in pairs])
        count = max(len(kl), 1)
        table.append(Agreement(shift, float(kl.sum()) / count, float(same_top1.sum()) / count, len(kl)))
    return SpotCheck(table, [float(kl.mean()) for kl, _ in found[0]])


def _compare(logps: Tensor, cached: TopK) -> tuple[Tensor, Tensor]:
    """Per position the KL, with the tail as one more outcome, and whether the likeliest token is the same."""
    slots = cached.to(logps.device, torch.float64)
    teacher_logps = logps.double().gather(-1, slots.ids)
    mass = slots.logps.exp()
    teacher_mass = torch.where(slots.live, teacher_logps.exp(), 0.0)
    inside = torch.where(slots.live, mass * (slots.logps - teacher_logps), 0.0).sum(dim=-1)
    tail = (1 - mass.sum(dim=-1)).clamp(min=1e-9)
    teacher_tail = (1 - teacher_mass.sum(dim=-1)).clamp(min=1e-9)
    kl = inside + tail * (tail / teacher_tail).log()
    return kl, logps.argmax(dim=-1) == slots.ids[:, 0]
