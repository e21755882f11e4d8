"""Run a teacher over a tokenized data set and store its log-probs; only documents that are not stored are computed."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from qsft.files import DiskFullError, check_writable, make_directory, publish, shown
from qsft.processes import is_main
from qsft.progress import Progress
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.plan import Plan
from qsft.teacher.capture.reader import read_batches
from qsft.teacher.capture.rendezvous import Rendezvous
from qsft.teacher.capture.timing import WaitingTimes
from qsft.teacher.capture.writer import ComputedBatch, ShardWriter
from qsft.teacher.documents import Documents, check_token_ids
from qsft.teacher.format.complete import note_complete
from qsft.teacher.format.encoding import bytes_per_label_token
from qsft.teacher.format.manifest import create_manifest, recover_manifest, refresh_manifest
from qsft.teacher.identity import Identity, check_settings
from qsft.teacher.sources.open_source import TeacherOrSource, open_source
from qsft.teacher.sources.source import TeacherSource
from qsft.teacher.vocabulary import VOCABULARY, Vocabulary
from qsft.validation import check_range, counted

WHAT = "the teacher cache"
ANNOUNCED_BYTES = 1e9  # a capture that writes more than this below the home directory says so first


def build_cache(
    dataset: Sequence[Mapping[str, Any]],
    teacher: TeacherOrSource,
    path: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase,
    top_k: int = 64,
    cache_encoding: str = "exact",
    top_p: float | None = None,
    min_k: int = 1,
    batch_tokens: int = 16_384,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
    device: str | torch.device | None = None,
    model_kwargs: dict[str, Any] | None = None,
    shard_bytes: int = 256 << 20,
    patience: float = 120.0,
    progress: bool = True,
) -> TeacherCache:
    """Return the cache at `path` with every document of `dataset` in it. Only missing documents are computed.

    Args:
        dataset: examples with `input_ids` and `labels` as training reads them. Labels of −100 are ignored.
        teacher: a causal LM, or the directory or Hub id of a model or of a LoRA adapter.
        path: the directory of the cache.
        tokenizer: the tokenizer of the data. It must match the teacher's.
        top_k: the number of tokens to store per label token.
        cache_encoding: "exact" (277 bytes per label token at k = 64) or "compact" (227 bytes).
        top_p: keep only the most likely tokens that together have this share of the mass.
        min_k: the minimum number of tokens to keep with `top_p`.
        batch_tokens: tokens per forward pass, including padding. Halved when the teacher runs out of memory.
        dtype: the dtype of the teacher. By default it is that of its checkpoint.
        revision: the revision of the teacher on the Hub.
        model_kwargs: further arguments of the teacher's `from_pretrained`.
        shard_bytes: the size at which a shard is published.
        patience: the time in seconds without a heartbeat after which another process of the capture that had one is
            considered dead.

    Raises:
        ValueError: if the cache belongs to another teacher or has other settings, or if the tokenizers do not match.
        DiskFullError: if the disk is too small.
    """
    path = Path(path)
    check_settings(top_k, cache_encoding, top_p, min_k)
    check_range("batch_tokens", batch_tokens, 1)
    documents = dataset if isinstance(dataset, Documents) else Documents(dataset)
    source = open_source(teacher, dtype=dtype, revision=revision, device=device, model_kwargs=model_kwargs)
    settings = {"top_k": top_k, "cache_encoding": cache_encoding, "top_p": top_p, "min_k": min_k}
    if source.requested_dtype is not None:
        settings["dtype"] = source.requested_dtype
    vocabulary = Vocabulary.of(tokenizer)
    make_directory(path, WHAT)
    existing = _open_existing(path, source, vocabulary, settings)
    if existing is not None and existing.is_complete(documents):
        return _finish(path, vocabulary, announce=progress)
    plan = Plan.of(documents, batch_tokens)
    missing = np.ones(len(plan.keys), bool) if existing is None else existing.missing_mask(plan.keys)
    if missing.any():
        check_writable(path, WHAT)
        with Rendezvous(path, source.replica, patience) as rendezvous:
            rendezvous.check_shared(plan.keys[missing])
            shared_ids = source.shared_ids(vocabulary)
            identity = _create_identity(path, source, vocabulary, settings)
            cache_ids = identity.check_same_tokenizer(path, vocabulary, "the tokenizer of the data")
            shared_ids = min(shared_ids, cache_ids)
            check_token_ids(documents, identity.vocab_size, shared_ids if shared_ids < vocabulary.size else None)
            Capture(source, identity, path, plan, missing).run(shard_bytes, show_progress=progress)
            owners = plan.owners(source.replica.count)
            rendezvous.wait_for(plan.keys[missing], owners[missing])
    cache = _finish(path, vocabulary, announce=progress and not missing.any())
    note_complete(path, documents, cache.shard_names)
    return cache


def _open_existing(
    path: Path, source: TeacherSource, vocabulary: Vocabulary, settings: dict[str, Any]
) -> TeacherCache | None:
    """The cache that is in `path` already; ValueError when this capture may not continue it."""
    if not recover_manifest(path):
        if (path / "config.json").is_file():
            raise ValueError(
                f"{path} holds a model, whose weight files could not be distinguished from the cache's shards. "
                "Give the teacher cache a directory of its own."
            )
        return None
    cache = TeacherCache(path)
    identity = cache.manifest.identity
    requested = settings | {"top_k": min(settings["top_k"], identity.vocab_size)}
    identity.check_same_settings(path, **requested)
    identity.check_same_tokenizer(path, vocabulary, "the tokenizer of the data")
    if identity.needs_weights_of(source.describe()):
        source.load()
    identity.check_same_teacher(path, source.describe())
    return cache


def _create_identity(path: Path, source: TeacherSource, vocabulary: Vocabulary, settings: dict[str, Any]) -> Identity:
    """The identity under which this capture writes: its own in a new directory, else the one that exists."""
    source.load()
    settings = settings | {
        "vocab_size": source.vocab_size,
        "dtype": source.dtype,
        "top_k": min(settings["top_k"], source.vocab_size),
    }
    own = Identity(teacher=source.describe(), tokenizer=vocabulary.about, **settings)
    identity = create_manifest(path, own).identity
    identity.check_same_settings(path, **settings)
    identity.check_same_teacher(path, own.teacher)
    _write_vocabulary(path, vocabulary)
    return identity


def _write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Store the tokens themselves beside their digest, so that an error can name the first that differs."""
    if not (path / VOCABULARY).is_file():
        publish(path / VOCABULARY, vocabulary.content, what=WHAT)


def _finish(path: Path, vocabulary: Vocabulary, *, announce: bool) -> TeacherCache:
    """Open the cache after the first process has brought its manifest up to date."""
    if is_main():
        refresh_manifest(path)
        _write_vocabulary(path, vocabulary)
    cache = TeacherCache(path)
    if announce and is_main():
        print(f"teacher cache {shown(path)}: {counted(len(cache), 'document')}, none is missing", file=sys.stderr)
    return cache


@dataclass
class Capture:
    """Computes and publishes the documents of a plan that a cache lacks."""

    source: TeacherSource
    identity: Identity
    path: Path
    plan: Plan
    missing: np.ndarray  # a mask over the plan's documents

    def run(self, shard_bytes: int, *, show_progress: bool) -> None:
        """Compute and publish this replica's batches."""
        self._check_space()
        self._announce_size()
        batches = self.plan.batches_of(self.source.replica, self.missing)
        show = show_progress and is_main()
        total = sum(len(batch) for batch in batches)
        times = WaitingTimes(self.source.advice, show)
        try:
            with Progress(f"teacher cache {shown(self.path)}", total, "documents", show=show) as bar:
                with ShardWriter(self.path, self.identity, shard_bytes, times) as writer:
                    self._compute(batches, writer, bar, times)
                bar.text += f"; {times.summary(bar.seconds)}"
                times.report(bar.seconds, finished=True)
        except DiskFullError as error:
            still_missing = TeacherCache(self.path).missing_mask(self.plan.keys)
            needed = self._bytes_needed(still_missing) / 1e6
            raise DiskFullError(f"{error} In all about {needed:,.1f} MB are still to be written.") from error

    def _compute(self, batches: list[np.ndarray], writer: ShardWriter, bar: Progress, times: WaitingTimes) -> None:
        label_tokens = 0
        for places, documents in read_batches(self.plan, batches, times):
            label_counts = self.plan.label_counts[places].tolist()
            log_probs = self.source.log_probs(documents, self.identity.top_k)
            keys = [key.tobytes() for key in self.plan.keys[places]]
            writer.put(ComputedBatch(log_probs, keys, documents, label_counts))
            label_tokens += sum(label_counts)
            rate = f"{bar.per_second(label_tokens):,.0f} label tokens/s"
            bar.advance(len(places), f"{rate}, {writer.bytes_written / 1e6:,.1f} MB")
            times.report(bar.seconds)

    def _bytes_needed(self, missing: np.ndarray) -> float:
        """What missing documents take on disk; with top_p the most they can."""
        per_token = bytes_per_label_token(self.identity.cache_encoding, self.identity.top_k, self.identity.vocab_size)
        return float(self.plan.label_counts[missing].sum() * per_token)

    def _check_space(self) -> None:
        needed = self._bytes_needed(self.missing)
        free = shutil.disk_usage(self.path).free
        if needed <= free:
            return
        problem = (
            f"the teacher cache {self.path} needs about {needed / 1e6:,.1f} MB more; {free / 1e6:,.1f} MB are free"
        )
        if self.identity.top_p is None:
            raise DiskFullError(
                f"{problem}. Free some space, choose another directory, or use cache_encoding='compact' or top_p."
            )
        print(f"{problem}, which may be enough: top_p keeps fewer slots than top_k.", file=sys.stderr)

    def _announce_size(self) -> None:
        """Say before hours of computing that the home directory will take a large cache, and what to do about it."""
        needed = self._bytes_needed(self.missing)
        if needed <= ANNOUNCED_BYTES or not is_main() or not self.path.resolve().is_relative_to(Path.home().resolve()):
            return
        at_most = "at most" if self.identity.top_p is not None else "about"
        print(
            f"the teacher cache will take {at_most} {needed / 1e9:,.1f} GB more in your home directory: {self.path}. "
            "Set teacher_cache or the environment variable QSFT_CACHE to store it elsewhere.",
            file=sys.stderr,
        )
