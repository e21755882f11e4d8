"""Is a cache what was written, and does it say what its teacher says? And what `qsft cache` prints about it.

`verify_cache` reads every checksum and bound of every file. `compare_with_teacher` computes sampled documents again by
the model's own forward, not by the projection that made the cache, and compares them with the cached rows at shifts
−1, 0 and +1: in a sound cache the shift 0 has no KL to speak of and the others do; an off-by-one shows as a table.
Every document counts by itself: a few stale ones must not drown in a mean.
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
from qsft.teacher.format.complete import REMEMBERED, is_damaged
from qsft.teacher.format.manifest import MANIFEST, Manifest, read_manifest, refresh_manifest
from qsft.teacher.format.shards import DamagedShard, Shard, UnusableShard, damaged, published, shard_name
from qsft.teacher.identity import VOCABULARY, Identity, teacher_difference
from qsft.teacher.log_probs import own_logits
from qsft.teacher.sources.transformers_source import TransformersSource

SHIFTS = (-1, 0, 1)
CONFIDENCE = 0.95
Sampled = tuple[np.ndarray, np.ndarray]  # input_ids and labels of a document


@dataclass
class Verification:
    """What was read of a cache, and what is wrong with it."""

    path: Path
    documents: int = 0
    label_tokens: int = 0
    bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)  # {file: why}, empty when the cache is sound
    kept: set[str] = field(default_factory=set)  # shards among them whose bytes are as written: never removed

    @property
    def ok(self) -> bool:
        return not self.problems

    def drop(self) -> int:
        """Remove the damaged files and bring the manifest up to date; how many sound documents are still there."""
        for name in set(self.problems) - self.kept:
            path = self.path / name
            with suppress(OSError):  # a directory that is not empty is not ours to remove
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        if not self.kept and all(path.is_file() for path in published(self.path)):
            refresh_manifest(self.path)
        return self.documents


def verify_cache(path: str | Path, *, progress: bool = False) -> Verification:
    """Read every byte of a cache and compare it with its checksums; a cache that cannot be opened is read too."""
    report = Verification(Path(path))
    manifest, shards = _manifest(report), published(report.path)
    with Progress(f"verify {shown(report.path)}", len(shards), "shards", show=progress) as bar:
        for path in shards:
            report.bytes += path.stat().st_size
            try:
                shard = _sound_shard(path, manifest)
                report.documents += len(shard)
                report.label_tokens += int(shard.rows.sum())
            except (UnusableShard, DamagedShard) as error:
                report.problems[path.name] = str(error)
                if isinstance(error, UnusableShard):
                    report.kept.add(path.name)
            bar.advance(text=f"{bar.per_second(report.bytes / 1e6):,.0f} MB/s")
    for name, entry in manifest.shards.items() if manifest is not None else ():
        # A listed size that is not the size of a sound shard is the manifest's fault; it can be written anew.
        if name not in report.problems and (report.path / name).stat().st_size != entry["bytes"]:
            report.problems[MANIFEST] = f"{report.path / MANIFEST} states a wrong size of {name}, which is sound."
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
        report.problems[VOCABULARY] = f"{vocabulary} is not the manifest's vocabulary; the next build restores it."
    for name in manifest.shards:
        if not (report.path / name).exists():
            report.problems[name] = str(damaged(report.path / name, "the file is missing"))
    return manifest


def _sound_shard(path: Path, manifest: Manifest | None) -> Shard:
    """A shard of which every document can be read; DamagedShard or UnusableShard for any other."""
    if not path.is_file():
        raise damaged(path, "it is not a regular file")
    if file_digest(path) != path.stem:
        raise damaged(path, "its bytes do not have the digest that is its name")
    try:
        shard = Shard(path)
        codec = Identity.read(shard.identity).codec(shard.version)
        shard.check_sizes(codec)
        for document in range(len(shard)):
            shard.read(document, codec)
        keys = {key.tobytes() for key in shard.keys}
        for place, sampled in enumerate(shard.sample()):
            if document_key(*sampled) not in keys:
                raise damaged(path, f"its sample document {place} is none of its documents")
    except ValueError as error:
        raise UnusableShard(
            f"{shard_name(path)} has the digest that is its name, so it is as it was written, but no capture wrote it: "
            f"{getattr(error, 'why', error)}. No rebuild could bring it back, so --drop leaves it: see who wrote it, "
            "move it away, then rerun the same `qsft cache build`, which computes its documents anew."
        ) from error
    if manifest is not None:
        shard.refuse_foreign(manifest.version, asdict(manifest.identity))
    return shard


# ---- against the teacher ----


class Agreement(NamedTuple):
    """Cached rows against the live teacher `shift` positions later: mean KL(cached ‖ live), share of equal top-1."""

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
        return sum(not kl <= tolerance for kl in self.document_kl)

    def is_aligned(self, tolerance: float) -> bool:
        """Whether every sampled document is the teacher's own, and nearer to it at shift 0 than at any other."""
        own = next(row for row in self.table if row.shift == 0)
        others = [row.kl for row in self.table if row.shift != 0 and row.label_tokens]
        return not self.differing(tolerance) and all(own.kl < kl for kl in others)

    @property
    def undetected_share(self) -> float:
        """The share of wrong documents that a sample of this size would have missed with probability 1 − CONFIDENCE."""
        return 1.0 if not self.document_kl else 1 - (1 - CONFIDENCE) ** (1 / len(self.document_kl))


def sample_documents(cache: TeacherCache, count: int, seed: int = 0) -> list[Sampled]:
    """Up to `count` random documents of those the cache keeps whole, from as many shards as possible."""
    rng = np.random.default_rng(seed)
    shards = [shard.sample() for shard in cache.shards]
    drawn = [[shards[i][j] for j in rng.permutation(len(shards[i]))] for i in rng.permutation(len(shards))]
    return list(islice(filter(None, chain.from_iterable(zip_longest(*drawn))), count))


@torch.no_grad()
def compare_with_teacher(cache: TeacherCache, model: nn.Module, documents: Sequence[Sampled]) -> SpotCheck:
    """The cached rows of `documents` against the model's own logits, over label positions that exist when shifted."""
    found: dict[int, list[tuple[Tensor, Tensor]]] = {shift: [] for shift in SHIFTS}
    for input_ids, labels in documents:
        cached, positions = cache.lookup(input_ids, labels), label_positions(labels)
        tokens = torch.from_numpy(input_ids.astype(np.int64))[None].to(input_device(model))
        with evaluating(model):
            logits = own_logits(model, {"input_ids": tokens}).cpu()
        for shift in SHIFTS:
            inside = (positions + shift >= 1) & (positions + shift < len(input_ids))
            predicting = torch.from_numpy(positions[inside] + shift - 1)
            found[shift].append(_compare(logits[predicting].log_softmax(dim=-1), cached[torch.from_numpy(inside)]))
    table = []
    for shift, pairs in found.items():
        kl, same = map(torch.cat, zip(*pairs))
        table.append(Agreement(shift, float(kl.sum()) / max(len(kl), 1), float(same.sum()) / max(len(kl), 1), len(kl)))
    return SpotCheck(table, [float(kl.mean()) for kl, _ in found[0]])


def _compare(logps: Tensor, cached: TopK) -> tuple[Tensor, Tensor]:
    """Per row the KL, with everything outside the slots as one more outcome, and whether the top-1 is the same."""
    slots = cached.to(logps.device, torch.float64)
    live = logps.double().gather(-1, slots.ids)
    mass, live_mass = slots.logps.exp(), torch.where(slots.live, live.exp(), 0.0)
    inside = torch.where(slots.live, mass * (slots.logps - live), 0.0).sum(dim=-1)
    tail, live_tail = ((1 - m.sum(dim=-1)).clamp(min=1e-9) for m in (mass, live_mass))
    return inside + tail * (tail / live_tail).log(), logps.argmax(dim=-1) == slots.ids[:, 0]


# ---- what `qsft cache` says ----


def describe(directory: str | Path) -> str:
    cache = TeacherCache(directory)
    identity, teacher = cache.manifest.identity, cache.manifest.identity.teacher
    rows = [
        ("teacher", f"{teacher.get('name')}{' @ ' + teacher['revision'] if teacher.get('revision') else ''}"),
        ("computed in", identity.dtype),
        ("vocabulary", f"{identity.vocab_size:,} rows, {identity.tokenizer['tokens']:,} tokens"),
        (
            "encoding",
            f"{identity.cache_encoding}, k={identity.top_k}" + (f", top_p={identity.top_p}" if identity.top_p else ""),
        ),
        ("documents", f"{len(cache):,} in {len(cache.shards)} shards"),
    ]
    measured = {name: value for name, value in cache.manifest.measured.items() if name != "documents"}
    rows += [(name.replace("_", " "), f"{value:,.6g}") for name, value in measured.items()]
    rows += [(f"made with {name}", version) for name, version in cache.manifest.libraries.items()]
    return "\n".join([f"teacher cache {shown(cache.path)}", *_columns(rows)])


def verify_files(directory: str | Path, *, drop: bool) -> tuple[bool, str]:
    """Whether every file is what was written, and what to say about it; `drop` removes what is not."""
    if not Path(directory).is_dir():
        raise ValueError(f"there is no directory {directory}, so nothing to verify. `qsft cache build` makes one.")
    report = verify_cache(directory, progress=True)
    if report.ok:
        found = f"{report.documents:,} documents, {report.label_tokens:,} label tokens, {report.bytes / 1e6:,.1f} MB"
        return True, f"{found}: all sound"
    lines = [f"- {why}" for why in report.problems.values()]
    lines.append(f"{len(report.problems)} unsound files in {shown(report.path)}")
    if drop:
        gone = f"removed {len(report.problems) - len(report.kept)}; {report.drop():,} documents are left"
        lines.append(f"{gone}. Build the cache again for the others.")
    return False, "\n".join(lines)


def verify_values(
    directory: str | Path, teacher: str, revision: str | None, sample: int, tolerance: float
) -> tuple[bool, str]:
    """Whether sampled documents are what the teacher says now, at the position they are stored for, and the table."""
    cache = TeacherCache(directory)
    source = TransformersSource(teacher, dtype=cache.manifest.identity.dtype, revision=revision)
    documents = sample_documents(cache, sample)
    check = compare_with_teacher(cache, source.load(), documents)
    difference = teacher_difference(cache.manifest.identity.teacher, source.describe())
    lines = [f"note: the cache holds the distributions of {difference}"] if difference else []
    lines.append(f"\n{len(documents)} documents of {len(cache.shards)} shards computed again with {teacher}:")
    header = ("shift", "KL(cached‖live)", "same top-1", "label tokens")
    rows = ((f"{r.shift:+d}", f"{r.kl:.3g}", f"{r.top1:.1%}", f"{r.label_tokens:,}") for r in check.table)
    lines += _columns([header, *rows])
    if check.is_aligned(tolerance):
        share = f"with {CONFIDENCE:.0%} confidence at most {check.undetected_share:.1%} of all documents do"
        said = f"aligned: shift 0 is the teacher. None of the sample differs, so {share} (--sample N looks closer)"
    else:
        wrong = f"{check.differing(tolerance)} of {len(documents)} documents"
        said = f"NOT aligned: the cached rows of {wrong} are not this teacher's at shift 0"
    return check.is_aligned(tolerance), "\n".join([*lines, said])


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
