"""TeacherCollator: wraps the collator TRL made and attaches what the target reads, found by content.

The teacher's rows are looked up document by document in the batch as it is, so order, shuffling, packing and padding
cannot misalign them. Floats leave as integer bit views: ZeRO and FSDP2 round float inputs to bf16 on the way in.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qsft.losses.head import to_bits
from qsft.targets.view import EMPTY
from qsft.teacher.documents import Collator, Span, document_index, document_key, label_positions, spans
from qsft.teacher.encoding import Rows
from qsft.teacher.lookup import TeacherCache
from qsft.train.side_inputs import laid_out

Batch = dict[str, Any]
Features = list[dict[str, Any]]

WHY_MISSING = (
    "A cache holds documents by their tokens and labels, so this usually means another max_length, chat template, "
    "tokenizer, loss mask or packing strategy than the one it was built with."
)


class TeacherCollator:
    """The batch of `base_collator` plus the teacher's ids, logps, label_logp and log_tail, aligned with the labels.

    cache      the teacher's rows, or None for targets that read none; it crosses processes as a path
    missing    "error", or "self": documents the cache lacks get empty slots, so the residual is the student itself
    columns    token-aligned columns of the data set to lay out like the tokens: {input of the head: column}
    document   whether to attach the document's number per token
    """

    def __init__(
        self,
        base_collator: Collator,
        cache: TeacherCache | None,
        *,
        missing: str = "error",
        columns: Mapping[str, str] | None = None,
        document: bool = False,
    ) -> None:
        self.base_collator = base_collator
        self.cache = cache
        self.missing = missing
        self.columns = dict(columns or {})
        self.document = document

    def __call__(self, features: Features) -> Batch:
        batch = self.base_collator(features)
        where = spans(batch, features)
        if self.cache is not None:
            batch.update(self.teacher_rows(self.cache, batch, where))
        if self.document:
            batch["document"] = document_index(batch, where)
        for name, column in self.columns.items():
            batch[name] = laid_out(name, column, features, where, batch["input_ids"].shape)
        return batch

    def teacher_rows(self, cache: TeacherCache, batch: Batch, where: Sequence[Span]) -> Batch:
        """Teacher tensors [B, T, k] and [B, T]; row t describes token t, and only label positions hold anything."""
        labels = batch["labels"]
        ids = torch.zeros(*labels.shape, cache.k, dtype=torch.int32)
        logps = torch.full(ids.shape, EMPTY, dtype=torch.float16)
        label_logp, log_tail = torch.full((2, *labels.shape), EMPTY, dtype=torch.float16)
        for row, start, stop in where:
            found = self.look_up(cache, batch["input_ids"][row, start:stop], labels[row, start:stop])
            if found is not None:
                positions = start + label_positions(labels[row, start:stop])
                ids[row, positions] = torch.from_numpy(found.ids)
                logps[row, positions] = torch.from_numpy(found.logps)
                label_logp[row, positions] = torch.from_numpy(found.label_logp)
                if found.log_tail is not None:
                    log_tail[row, positions] = torch.from_numpy(found.log_tail)
        carried = {"teacher_logps": logps, "teacher_label_logp": label_logp}
        if cache.has_tail:
            carried["teacher_log_tail"] = log_tail
        return {"teacher_ids": ids} | {name: to_bits(values) for name, values in carried.items()}

    def look_up(self, cache: TeacherCache, input_ids: Tensor, labels: Tensor) -> Rows | None:
        """The teacher's rows of one document; None where it has no labels, or is missing and may be."""
        if not len(label_positions(labels)):
            return None
        key = document_key(input_ids, labels)
        if key in cache:
            return cache.lookup_arrays(key)
        if self.missing == "self":
            return None
        raise ValueError(
            f"the teacher cache {cache.path} does not hold a document of this batch ({len(input_ids)} tokens, starting "
            f"{input_ids[:8].tolist()}). {WHY_MISSING} Add it with `qsft cache build`, or set teacher_missing='self'."
        )
