"""Run a teacher over a tokenised data set and keep what it says: resumes, appends, divides over processes.

Only documents that are not in the cache are computed.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from qsft.files import NoSpace, make_directory, probe, publish, shown
from qsft.inference.loading import dtype_name, input_device
from qsft.losses.evaluation_mode import evaluating
from qsft.processes import is_main
from qsft.progress import Progress
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.plan import Plan, ready_batches
from qsft.teacher.capture.rendezvous import require_shared, wait_for_others
from qsft.teacher.capture.timing import Pace
from qsft.teacher.capture.writer import ShardWriter
from qsft.teacher.documents import Documents, check_token_ids
from qsft.teacher.format.complete import remember
from qsft.teacher.format.encoding import TopKArrays, bytes_per_label_token
from qsft.teacher.format.manifest import create_manifest, recover_manifest, refresh_manifest
from qsft.teacher.format.shards import VERSION
from qsft.teacher.identity import VOCABULARY, Identity, Vocabulary, check_settings
from qsft.teacher.log_probs import check_teacher_head, head_size, teacher_log_probs
from qsft.teacher.sources.transformers_source import TransformersSource

WHAT = "the teacher cache"


def build_cache(
    dataset: Sequence[Mapping[str, Any]],
    teacher: str | Path | nn.Module,
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
    patience: float = 1800.0,
    progress: bool = True,
) -> TeacherCache:
    """The cache at `path` after every document of `dataset` is in it; only missing ones are computed.

    dataset       rows with `input_ids` and `labels` (−100: ignored), as training will see them
    teacher       a causal LM, a path, or a hub id (with `revision`), loaded in its own dtype unless `dtype` is given
    tokenizer     the one the data were tokenised with; it must be the teacher's
    cache_encoding "exact" (389 bytes per label token at k = 64) or "compact" (216 bytes, KL below 1e-5)
    top_p         keep only the slots that hold this share of the mass, between `min_k` and k of them
    batch_tokens  tokens per forward, padding included; halved when the teacher runs out of memory
    patience      seconds without a new shard after which a process no longer waits for the others
    """
    path = Path(path)
    check_settings(top_k, cache_encoding, top_p, min_k)
    documents = dataset if isinstance(dataset, Documents) else Documents(dataset)
    source = TransformersSource(teacher, dtype=dtype, revision=revision, device=device, model_kwargs=model_kwargs)
    settings = {"top_k": top_k, "cache_encoding": cache_encoding, "top_p": top_p, "min_k": min_k} | source.asked_dtype
    vocabulary = Vocabulary.of(tokenizer)
    make_directory(path, WHAT)
    cache = _existing(path, source, vocabulary, settings)
    if cache is not None and cache.is_complete(documents):
        return _finished(path, vocabulary, say=progress)
    plan = Plan(documents, batch_tokens)
    missing = np.ones(len(plan.keys), bool) if cache is None else cache.absent(plan.keys)
    if missing.any():
        if cache is not None and cache.manifest.version != VERSION:
            raise ValueError(
                f"the teacher cache {path} has format version {cache.manifest.version}: it is read, but documents are "
                f"added in version {VERSION} only, which stores the tail. Give a new directory, or delete this one."
            )
        probe(path, WHAT)
        require_shared(path, patience)
        shared = source.check_same_tokenizer(vocabulary)
        identity = _claim(path, source, vocabulary, settings)
        shared = min(shared, identity.check_same_tokenizer(path, vocabulary, "the tokenizer of the data"))
        check_token_ids(documents, identity.vocab_size, shared if shared < vocabulary.size else None)
        Capture(source.load(), identity, path, plan, missing).run(shard_bytes, progress)
        wait_for_others(path, {key.tobytes() for key in plan.keys[missing]}, patience)
    cache = _finished(path, vocabulary, say=progress and not missing.any())
    remember(path, documents, cache.shard_names)
    return cache


def _existing(
    path: Path, source: TransformersSource, vocabulary: Vocabulary, settings: dict[str, Any]
) -> TeacherCache | None:
    """The cache that is there already; ValueError when this capture may not continue it."""
    if not recover_manifest(path):
        if (path / "config.json").is_file():
            raise ValueError(
                f"{path} holds a model, whose weight files the cache's shards would be mistaken for. "
                "Give the teacher cache a directory of its own."
            )
        return None
    cache = TeacherCache(path)
    identity = cache.manifest.identity
    identity.check_same_settings(path, **settings | {"top_k": min(settings["top_k"], identity.vocab_size)})
    identity.check_same_tokenizer(path, vocabulary, "the tokenizer of the data")
    if identity.is_undecided(source.describe()):
        source.load()
    identity.check_same_teacher(path, source.describe())
    return cache


def _claim(path: Path, source: TransformersSource, vocabulary: Vocabulary, settings: dict[str, Any]) -> Identity:
    """The identity under which this capture writes: its own in a new directory, else the one that is there."""
    model = source.load()
    vocab_size, dtype = head_size(model), dtype_name(next(model.parameters()).dtype)
    settings = settings | {"vocab_size": vocab_size, "dtype": dtype, "top_k": min(settings["top_k"], vocab_size)}
    own = Identity(teacher=source.describe(), tokenizer=vocabulary.about, **settings)
    identity = create_manifest(path, own).identity
    identity.check_same_settings(path, **settings)
    identity.check_same_teacher(path, own.teacher)
    _keep_vocabulary(path, vocabulary)
    return identity


def _keep_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Put the tokens themselves beside their digest, so that an error can name the first that differs."""
    if not (path / VOCABULARY).is_file():
        publish(path / VOCABULARY, vocabulary.content, what=WHAT)


@dataclass
class Capture:
    """The documents of a plan that a cache lacks, and the teacher to ask."""

    model: nn.Module
    identity: Identity
    path: Path
    plan: Plan
    missing: np.ndarray
    pieces: int = 1  # that a batch is computed in

    def run(self, shard_bytes: int, progress: bool) -> None:
        """Compute and publish this process's batches."""
        self._require_space()
        mine = self.plan.left(self.missing)
        total, show = sum(map(len, mine)), progress and is_main()
        pace = Pace(input_device(self.model), show)
        try:
            with (
                evaluating(self.model),
                Progress(f"teacher cache {shown(self.path)}", total, "documents", show=show) as bar,
            ):
                with ShardWriter(self.path, self.identity, shard_bytes, pace) as writer:
                    self._compute(mine, writer, bar, pace)
                bar.text += f"; {pace.split(bar.seconds)}"
                pace.advise(bar.seconds, finished=True)
        except NoSpace as error:
            left = self._bytes_needed(TeacherCache(self.path).absent(self.plan.keys))
            raise NoSpace(f"{error} In all about {left / 1e6:,.1f} MB are still to be written.") from error

    def _compute(self, batches: list[np.ndarray], writer: ShardWriter, bar: Progress, pace: Pace) -> None:
        """Batches through the teacher, a document per row: positions count from its first token."""
        device, tokens = input_device(self.model), 0
        for batch, documents, padded in ready_batches(self.plan, batches, pace):
            inputs = {name: tensor.to(device) for name, tensor in padded.items()}
            if not tokens:
                check_teacher_head(self.model, **{name: inputs[name] for name in ("input_ids", "attention_mask")})
            keys, counts = [key.tobytes() for key in self.plan.keys[batch]], self.plan.labels[batch].tolist()
            writer.put(self._rows(inputs), keys, documents, counts)
            tokens += sum(counts)
            rate = f"{bar.per_second(tokens):,.0f} label tokens/s, {writer.bytes_written / 1e6:,.1f} MB"
            bar.advance(len(batch), rate)
            pace.advise(bar.seconds)

    def _rows(self, inputs: dict[str, Tensor]) -> TopKArrays:
        """The teacher's rows; a batch that does not fit the memory is computed in halves, as are those after it."""
        size, width = inputs["input_ids"].shape
        while True:
            step = -(-size // self.pieces)
            parts = [{name: tensor[i : i + step] for name, tensor in inputs.items()} for i in range(0, size, step)]
            try:
                return TopKArrays.of(*(teacher_log_probs(self.model, self.identity.top_k, **part) for part in parts))  # type: ignore[arg-type]
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and not should_reduce_batch_size(error):
                    raise
                if step == 1:
                    raise torch.OutOfMemoryError(
                        f"one document of {width} tokens does not fit the teacher's memory. Load it in bfloat16, "
                        "spread it with model_kwargs={'device_map': 'auto'}, or shorten max_length."
                    ) from error
            self.pieces *= 2
            torch.cuda.empty_cache()
            print(
                f"the teacher ran out of memory with {step} documents of {width} tokens: batches are computed in "
                f"{self.pieces} parts from now on (batch_tokens sets their size).",
                file=sys.stderr,
            )

    def _bytes_needed(self, missing: np.ndarray) -> float:
        """What missing documents take on disk; with top_p the most they can."""
        per_row = bytes_per_label_token(self.identity.cache_encoding, self.identity.top_k, self.identity.vocab_size)
        return float(self.plan.labels[missing].sum() * per_row)

    def _require_space(self) -> None:
        needed, free = self._bytes_needed(self.missing), shutil.disk_usage(self.path).free
        if needed <= free:
            return
        words = f"the teacher cache {self.path} needs about {needed / 1e6:,.1f} MB more; {free / 1e6:,.1f} MB are free"
        if self.identity.top_p is None:
            raise NoSpace(
                f"{words}. Free some space, choose another directory, or use cache_encoding='compact' or top_p."
            )
        print(f"{words}, which may do: top_p keeps fewer slots than k.", file=sys.stderr)


def _finished(path: Path, vocabulary: Vocabulary, *, say: bool) -> TeacherCache:
    """The cache, with its manifest brought up to date by the first process; `say` where it is when nothing else did."""
    if is_main():
        refresh_manifest(path)
        _keep_vocabulary(path, vocabulary)
    cache = TeacherCache(path)
    if say and is_main():
        print(f"teacher cache {shown(path)}: {len(cache):,} documents, none is missing", file=sys.stderr)
    return cache
