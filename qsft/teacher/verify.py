"""Is a cache what was written, and does it say what the teacher says?

`verify_cache` checks every checksum and every bound of every file and says what to drop. `compare_with_teacher` is a
spot check: sampled documents are computed again and compared with the cached rows at shifts −1, 0 and +1. In a sound
cache the shift 0 has no KL to speak of and the others do; an off-by-one shows as a table.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from qsft.fingerprints import digest, file_digest
from qsft.targets.view import TopK
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import document_key, label_positions
from qsft.teacher.identity import VOCABULARY, Identity
from qsft.teacher.live import input_device, logit_tiles, predicting_states
from qsft.teacher.manifest import MANIFEST, Manifest, read_manifest, recover_manifest, refresh_manifest
from qsft.teacher.remembered import REMEMBERED, is_damaged
from qsft.teacher.shards import DamagedShard, Shard, damaged, published

SHIFTS = (-1, 0, 1)


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
        if (self.path / MANIFEST).is_file():
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
        report.problems[MANIFEST] = str(error)
        return None
    vocabulary = report.path / VOCABULARY
    if not vocabulary.is_file() or digest(vocabulary.read_bytes()) != manifest.identity.tokenizer.get("digest"):
        report.problems[VOCABULARY] = (
            f"{vocabulary} is not the vocabulary the manifest names; the next build restores it."
        )
    if is_damaged(report.path):
        report.problems[REMEMBERED] = f"{report.path / REMEMBERED} is not as written; it is ignored and rewritten."
    for name in manifest.shards:
        if not (report.path / name).is_file():
            report.problems[name] = str(damaged(report.path / name, "the file is missing"))
    return manifest


def _check_shard(path: Path, manifest: Manifest | None) -> tuple[int, int]:
    """Documents and rows of a sound shard; DamagedShard for any other."""
    if file_digest(path) != path.stem:
        raise damaged(path, "its bytes do not have the digest that is its name")
    shard = Shard(path)
    try:
        identity = Identity.read(shard.identity)
    except ValueError as error:
        raise damaged(path, str(error)) from error
    if manifest is not None and (shard.version, identity) != (manifest.version, manifest.identity):
        raise damaged(path, "it was made by another capture than the manifest's (teacher, k, encoding or version)")
    codec = identity.codec(shard.version)
    shard.check_sizes(codec)
    for document in range(len(shard)):
        shard.read(document, codec)
    for why in _wrong_samples(shard):
        raise damaged(path, why)
    return len(shard), int(shard.rows.sum())


def _wrong_samples(shard: Shard) -> Iterator[str]:
    """A document kept whole must be one of the shard's own."""
    keys = {key.tobytes() for key in shard.keys}
    for place, (input_ids, labels) in enumerate(shard.sample()):
        if document_key(input_ids, labels) not in keys:
            yield f"its sample document {place} is none of its documents"


@dataclass(frozen=True)
class Agreement:
    """Cached rows against the live teacher `shift` positions later: mean KL(cached ‖ live), share of equal top-1."""

    shift: int
    kl: float
    top1: float
    label_tokens: int


def sample_documents(cache: TeacherCache, count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Up to `count` random documents of those the cache keeps whole."""
    documents = cache.samples()
    chosen = np.random.default_rng(seed).permutation(len(documents))[:count]
    return [documents[i] for i in chosen]


def compare_with_teacher(
    cache: TeacherCache, model: nn.Module, documents: Sequence[tuple[np.ndarray, np.ndarray]]
) -> list[Agreement]:
    """One Agreement per shift, over all label positions of `documents` for which the shifted position exists."""
    found: dict[int, list[tuple[Tensor, Tensor]]] = {shift: [] for shift in SHIFTS}
    for input_ids, labels in documents:
        cached, positions = cache.lookup(input_ids, labels), label_positions(labels)
        states = _states(model, input_ids)
        for shift in SHIFTS:
            inside = (positions + shift >= 1) & (positions + shift < len(input_ids))
            rows = cached[torch.from_numpy(inside)]
            found[shift].append(_compare(model, states[positions[inside] + shift - 1], rows))
    return [_agreement(shift, *map(torch.cat, zip(*pairs))) for shift, pairs in found.items()]


def aligned(table: Sequence[Agreement], tolerance: float) -> bool:
    """Whether the rows are the teacher's own, and nearer to it at shift 0 than at any other."""
    own = next(row for row in table if row.shift == 0)
    others = [row.kl for row in table if row.shift != 0 and row.label_tokens]
    return own.kl <= tolerance and all(own.kl < kl for kl in others)


@torch.no_grad()
def _states(model: nn.Module, input_ids: np.ndarray) -> Tensor:
    """The state that predicts token t at place t−1, for every token but the first."""
    tokens = torch.from_numpy(input_ids.astype(np.int64))[None].to(input_device(model))
    return predicting_states(model, tokens, tokens)[0]


@torch.no_grad()
def _compare(model: nn.Module, states: Tensor, cached: TopK) -> tuple[Tensor, Tensor]:
    """Per row the KL, with everything outside the slots as one more outcome, and whether the top-1 is the same."""
    kls, same = [], []
    for rows, tile in logit_tiles(model, states):
        logps = tile.log_softmax(dim=-1)
        slots = cached[rows].to(logps.device, torch.float64)
        live = logps.double().gather(-1, slots.ids)
        mass, live_mass = slots.logps.exp(), torch.where(slots.live, live.exp(), 0.0)
        inside = torch.where(slots.live, mass * (slots.logps - live), 0.0).sum(dim=-1)
        tail, live_tail = ((1 - m.sum(dim=-1)).clamp(min=1e-9) for m in (mass, live_mass))
        kls.append((inside + tail * (tail / live_tail).log()).cpu())
        same.append((logps.argmax(dim=-1) == slots.ids[:, 0]).cpu())
    return torch.cat(kls), torch.cat(same)


def _agreement(shift: int, kl: Tensor, same: Tensor) -> Agreement:
    count = max(len(kl), 1)
    return Agreement(shift, float(kl.sum()) / count, float(same.sum()) / count, len(kl))
