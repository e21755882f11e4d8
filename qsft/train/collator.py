"""TeacherCollator: wraps the collator TRL made and attaches what the target reads, found by content. TaughtTrainer
keeps it supplied: a teacher's cache that is complete, columns of the data set that are cut and packed with the tokens.

The teacher's rows are looked up document by document in the batch as it is, so order, shuffling, packing and padding
cannot misalign them. Floats leave as integer bit views: ZeRO and FSDP2 round float inputs to bf16 on the way in.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from qsft.losses.head import LABEL_COUNT, TEACHER_INPUTS, to_bits
from qsft.targets.target import Target
from qsft.targets.view import EMPTY, IGNORED
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Collator, Documents, Span, document_index, document_key, label_positions, spans
from qsft.teacher.format.encoding import TopKArrays
from qsft.teacher.live import LiveTeacher
from qsft.train import safeguards, side_inputs
from qsft.train.record import RecordingTrainer
from qsft.train.teacher import RunTeacher

Batch = dict[str, Any]


@dataclass
class TeacherCollator:
    """The batch of `base_collator` plus the teacher's ids, logps, label_logp and log_tail, aligned with the labels.

    cache          the teacher's rows, or None for targets that read none; it crosses processes as a path
    missing        "error", or "self": documents the cache lacks get empty slots: the residual is the student itself
    columns        token-aligned columns of the data set to lay out like the tokens: {input of the head: column}
    document       whether to attach the document's number per token
    count_labels   whether to count them, here on the CPU, so that the head need not wait for the device
    """

    base_collator: Collator
    cache: TeacherCache | None
    _: KW_ONLY
    missing: str = "error"
    columns: Mapping[str, str] = field(default_factory=dict)
    document: bool = False
    count_labels: bool = False

    def __call__(self, features: list[Batch]) -> Batch:
        batch = self.base_collator(features)
        if self.count_labels and "labels" in batch:
            batch[LABEL_COUNT] = int((batch["labels"][:, 1:] != IGNORED).sum())
        where = spans(batch, features) if self.cache is not None or self.document or self.columns else []
        if self.cache is not None:
            batch.update(self.teacher_rows(self.cache, batch, where))
        if self.document:
            batch["document"] = document_index(batch, where)
        for name, column in self.columns.items():
            batch[name] = side_inputs.laid_out(name, column, features, where, batch["input_ids"].shape)
        return batch

    def teacher_rows(self, cache: TeacherCache, batch: Batch, where: Sequence[Span]) -> Batch:
        """Teacher tensors [B, T, k] and [B, T]; row t describes token t, and only label positions hold anything."""
        labels = batch["labels"]
        ids = torch.zeros(*labels.shape, cache.k, dtype=torch.int32)
        logps = torch.full(ids.shape, EMPTY, dtype=torch.float16)
        per_token = torch.full((1 + cache.has_tail, *labels.shape), EMPTY, dtype=torch.float16)
        for row, start, stop in where:
            found: Any = self.look_up(cache, batch["input_ids"][row, start:stop], labels[row, start:stop])
            if found is not None:
                positions = start + label_positions(labels[row, start:stop])
                for column, values in zip((ids, logps, *per_token), found):
                    column[row, positions] = torch.from_numpy(values)
        return dict(zip(TEACHER_INPUTS, (ids, to_bits(logps), *map(to_bits, per_token))))

    def look_up(self, cache: TeacherCache, input_ids: Tensor, labels: Tensor) -> TopKArrays | None:
        """The teacher's rows of one document; None where it has no labels, or is missing and may be."""
        key = document_key(input_ids, labels)
        if key in cache:
            return cache.lookup_arrays(key)
        if self.missing == "self" or not len(label_positions(labels)):
            return None
        raise ValueError(
            f"the teacher cache {cache.path} does not hold a document of this batch ({len(input_ids)} tokens: "
            f"{input_ids[:8].tolist()} …). {safeguards.WHY_MISSING} `qsft cache build` adds it."
        )


class TaughtTrainer(RecordingTrainer):
    """RecordingTrainer whose batches carry what the target reads, for whatever data are trained on or evaluated."""

    model: Any
    data_collator: Any
    target: Target
    teacher: RunTeacher | None
    side_columns: dict[str, str]
    _signature_columns: Any

    def open_teacher(self) -> None:
        """Open the live teacher or the cache (built first where missing), and wrap TRL's collator around it."""
        self.live: LiveTeacher | None = None
        self.cache: TeacherCache | None = None
        self.base_collator = self.data_collator
        datasets = safeguards.all_of(self.train_dataset, self.eval_dataset)
        if self.teacher is not None and self.teacher.live:
            self.live = self.teacher.run_live(self.model, self._tokenizer)
        elif self.teacher is not None:
            self.cache = self.cache_with(self.teacher, *datasets)
        self.data_collator = TeacherCollator(
            self.base_collator,
            self.cache,
            missing=self.args.teacher_missing,
            columns=self.side_columns,
            document="document" in self.target.needs,
            count_labels=safeguards.counts_hold(self.model, self.accelerator, datasets),
        )

    def cache_with(self, teacher: RunTeacher, *datasets: Any) -> TeacherCache:
        """The teacher's cache with the documents of the data sets; those that stream are looked up as they come."""
        known = type(self.base_collator) is DataCollatorForLanguageModeling
        map_style = [dataset for dataset in datasets if isinstance(dataset, Dataset)]
        documents = Documents(*map_style, collator=None if known else self.base_collator)
        cache = teacher.complete(documents, self._tokenizer, self.model, trained=self.state.global_step > 0)
        self.teacher = replace(teacher, path=cache.path)  # the place is a base's own only before it is trained
        return cache

    def get_eval_dataloader(self, eval_dataset: str | Dataset | None = None) -> DataLoader:
        self.take_in(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """Trainer's dataloader; data passed to predict() are prepared as evaluate() does it."""
        if not self._skip_prepare_dataset:
            packing = self.args.packing if self.args.eval_packing is None else self.args.eval_packing
            how = (self.processing_class, self.args, packing, self._formatting_func, "test")
            test_dataset = self._prepare_dataset(test_dataset, *how)
        self.take_in(test_dataset)
        return super().get_test_dataloader(test_dataset)

    def take_in(self, dataset: str | Dataset | None) -> None:
        """Make ready for data passed to evaluate() or predict(): their teacher rows come first."""
        self.sums["eval"].reset()  # predict() adds to them and never logs
        if not (dataset is None or isinstance(dataset, str)):
            self.data_collator.count_labels &= safeguards.counts_hold(self.model, self.accelerator, [dataset])
            if self.teacher is not None and self.cache is not None:
                self.cache = self.data_collator.cache = self.cache_with(self.teacher, dataset)

    def _reject_skip_prepare_without_labels(self, datasets: Any, data_collator: Any) -> None:
        super()._reject_skip_prepare_without_labels(datasets, getattr(data_collator, "base_collator", data_collator))

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, packing: bool, *rest: Any) -> Any:
        if not self.side_columns:
            return super()._prepare_dataset(dataset, processing_class, args, packing, *rest)
        uncut = copy(args)  # nothing for TRL to cut or reorder: the columns must be cut and reordered along
        uncut.max_length, uncut.shuffle_dataset = None, False
        whole = super()._prepare_dataset(dataset, processing_class, uncut, False, *rest)
        return side_inputs.finish(whole, list(self.side_columns.values()), args, packing)

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            super()._set_signature_columns_if_needed()
            self._signature_columns = [*self._signature_columns, *self.side_columns.values()]  # type: ignore[misc]
