"""TeacherCollator: wraps the collator that TRL made and attaches what the target reads.

The teacher's log-probs are looked up by content, document by document in the batch as it is, so order, shuffling,
packing and padding cannot misalign them. Floats leave as integer bit views, because ZeRO and FSDP2 round the float
inputs of a model to bf16.
"""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from qsft.losses.head import LABEL_POSITIONS, TEACHER_INPUTS, find_label_positions, to_bits
from qsft.targets.view import EMPTY, IGNORED
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import (
    Collator,
    Documents,
    Span,
    document_index,
    document_key,
    label_positions,
    spans,
)
from qsft.teacher.format.encoding import TopKArrays
from qsft.train.columns import batch_column
from qsft.train.validate import WHY_MISSING

Batch = dict[str, Any]


@dataclass
class TeacherCollator:
    """Adds the inputs of the target to the batch of `base_collator`, aligned with the labels.

    Other attributes are read from `base_collator` and set on it. A script that sets
    `trainer.data_collator.pad_to_multiple_of` therefore changes the padding.

    Args:
        base_collator: makes the batch.
        cache: the teacher's log-probs, or None for targets without a cached teacher. Worker processes receive its path.
        missing: what to do with a document that is not in the cache: raise an "error", or use the "student", whose own
            distribution is then the residual.
        columns: columns of the data set with a value per token, as {name of the head's input: column}.
        attach_document: whether to attach the number of each token's document.
        attach_label_positions: whether to attach the positions of the labels, which saves the head a host-device
            synchronization.
        num_embeddings: the size of the student's embedding, which token ids are checked against. None checks nothing.
    """

    base_collator: Collator
    cache: TeacherCache | None
    _: KW_ONLY
    missing: str = "error"
    columns: Mapping[str, str] = field(default_factory=dict)
    attach_document: bool = False
    attach_label_positions: bool = False
    num_embeddings: int | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in OWN_ATTRIBUTES:  # not set yet, as while unpickling
            raise AttributeError(name)
        return getattr(self.base_collator, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OWN_ATTRIBUTES:
            object.__setattr__(self, name, value)
        else:
            setattr(self.base_collator, name, value)

    def __call__(self, features: list[Batch]) -> Batch:
        batch = self.base_collator(features)
        if self.num_embeddings is not None:
            check_ids(batch, self.num_embeddings)
        if self.attach_label_positions and "labels" in batch:
            batch[LABEL_POSITIONS] = find_label_positions(batch["labels"])
        if self.cache is None and not self.attach_document and not self.columns:
            return batch
        document_spans = spans(batch, features)
        if self.cache is not None:
            batch.update(self._teacher_tensors(self.cache, batch, document_spans))
        if self.attach_document:
            batch["document"] = document_index(batch, document_spans)
        for name, column in self.columns.items():
            batch[name] = batch_column(name, column, features, document_spans, batch["input_ids"].shape)
        return batch

    def _teacher_tensors(self, cache: TeacherCache, batch: Batch, document_spans: Sequence[Span]) -> Batch:
        """Teacher tensors [B, T, k] and [B, T]; entry t describes token t, and only label positions are filled."""
        labels = batch["labels"]
        ids = torch.zeros(*labels.shape, cache.k, dtype=torch.int32)
        logps = torch.full(ids.shape, EMPTY, dtype=cache.logps_dtype)
        label_logp = torch.full(labels.shape, EMPTY, dtype=torch.float16)
        log_tail = torch.full(labels.shape, EMPTY, dtype=torch.float16)
        tensors = (ids, logps, label_logp, log_tail)
        for row, start, stop in document_spans:
            arrays = self._look_up(cache, batch["input_ids"][row, start:stop], labels[row, start:stop])
            if arrays is None:
                continue
            positions = start + label_positions(labels[row, start:stop])
            for tensor, values in zip(tensors, arrays, strict=True):
                tensor[row, positions] = torch.from_numpy(values)
        inputs = (ids, to_bits(logps), to_bits(label_logp), to_bits(log_tail))
        return dict(zip(TEACHER_INPUTS, inputs, strict=True))

    def _look_up(self, cache: TeacherCache, input_ids: Tensor, labels: Tensor) -> TopKArrays | None:
        """The teacher's log-probs of one document.

        None for a document without labels, and for a missing one with missing="student".
        """
        key = document_key(input_ids, labels)
        if key in cache:
            return cache.lookup_arrays(key)
        if self.missing == "student" or not len(label_positions(labels)):
            return None
        raise ValueError(
            f"the teacher cache {cache.path} does not have a document of this batch ({len(input_ids)} tokens: "
            f"{input_ids[:8].tolist()} …). {WHY_MISSING} `qsft cache build` adds it."
        )


OWN_ATTRIBUTES = frozenset(own.name for own in fields(TeacherCollator))


def documents_read_by(collator: Collator, datasets: Sequence[Dataset]) -> Documents:
    """The documents of prepared data sets as `collator` passes them to the model."""
    if type(collator) is not DataCollatorForLanguageModeling:
        return Documents(*datasets, collator=collator)
    if collator.padding_free:
        return Documents(*datasets)
    # It reads a packed example as one document, as with eval_packing=True beside packing=False.
    without_segments = [
        dataset.remove_columns("seq_lengths") if "seq_lengths" in dataset.column_names else dataset
        for dataset in datasets
    ]
    return Documents(*without_segments)


def check_ids(batch: Batch, num_embeddings: int) -> None:
    """Raise ValueError for token ids or labels that the student's embedding does not have."""
    for name in ("input_ids", "labels"):
        ids = batch.get(name)
        if ids is None:
            continue
        invalid = (ids < 0) | (ids >= num_embeddings)
        if name == "labels":
            invalid &= ids != IGNORED
        if bool(invalid.any()):
            raise ValueError(
                f"{name} has the id {int(ids[invalid][0])}, but the student's embedding has {num_embeddings} entries. "
                "Another tokenizer made the data, or the embedding was not resized after adding tokens; −100 marks "
                "ignored labels."
            )
