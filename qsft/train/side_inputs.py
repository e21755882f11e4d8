"""What single rows of the table read beside labels and teacher: psft its old policy, cft and iw_sft columns."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.utils import logging
from trl import SFTConfig, pack_dataset

from qsft.losses.evaluation_mode import evaluating
from qsft.losses.head import SIDE_INPUTS, TEACHER_INPUTS, label_logps, to_bits
from qsft.targets.target import Target
from qsft.targets.view import IGNORED
from qsft.teacher.documents import Span
from qsft.train.config import TargetSFTConfig

logger = logging.get_logger(__name__)

Batch = dict[str, Any]


class Block:
    """PSFT's old policy: the batches of the next `steps` optimiser steps, scored by the student as it is now.

    Blocks end at multiples of `steps`, and with the epoch, whose successor's batches are not drawn yet: the last block
    before and the first after may be short. A checkpoint inside a block takes the old log-probs along.
    """

    def __init__(self, steps: int, score: Callable[[Batch], Tensor]) -> None:
        self.steps, self.score = steps, score
        self.batches: list[Batch] = []
        self.saved: list[dict[str, Tensor]] = []
        self.source: Iterator[Batch] | None = None

    def serve(self, source: Iterator[Batch], count: int, step: int) -> Iterator[Batch]:
        """The `count` batches of optimiser step `step`; a new block is drawn and scored when the last is used up."""
        if source is not self.source:  # a new epoch or a new call of train(): what was left belongs to the old one
            self.source, self.batches = source, []
        if not self.batches:
            steps = self.steps - step % self.steps
            self.batches = self.score_all(list(islice(source, count * steps)))
        served, self.batches = self.batches[:count], self.batches[count:]
        return iter(served)

    @torch.no_grad()
    def scored(self, batch: Batch) -> Batch:
        """The batch with `old_logp`: the student's present log-prob of every label, as bits."""
        return {**batch, "old_logp": to_bits(self.score(batch).float())}

    def score_all(self, batches: list[Batch]) -> list[Batch]:
        """The batches scored: after a resume inside a block by the old policy that was saved with the checkpoint."""
        saved, self.saved = self.saved, []
        pairs = list(zip(batches, saved))
        same = len(saved) == len(batches) and all(b["input_ids"].cpu().equal(old["input_ids"]) for b, old in pairs)
        if saved and same:
            return [{**batch, "old_logp": old["old_logp"].to(batch["input_ids"].device)} for batch, old in pairs]
        if saved:
            logger.warning(
                "the checkpoint's old policy belongs to other batches (another number of processes, or other data): "
                "psft refreshes it, so this run will differ from an uninterrupted one until the next block."
            )
        return [self.scored(batch) for batch in batches]

    def save(self, file: Path) -> None:
        """Write the old log-probs of the batches still to be served; no file at a block's end."""
        file.unlink(missing_ok=True)
        names = ("input_ids", "old_logp")
        tensors = {f"{name}.{i}": b[name].cpu().contiguous() for i, b in enumerate(self.batches) for name in names}
        if tensors:
            save_file(tensors, file)

    def load(self, file: Path) -> None:
        tensors = load_file(file) if file.is_file() else {}
        numbers = range(len(tensors) // 2)
        self.saved = [{name: tensors[f"{name}.{i}"] for name in ("input_ids", "old_logp")} for i in numbers]


def score(model: nn.Module, batch: Batch) -> Tensor:
    """The model's present log-prob of every label of the batch, without dropout."""
    plain = {name: value for name, value in batch.items() if name not in (*TEACHER_INPUTS, *SIDE_INPUTS)}
    with evaluating(model):
        return label_logps(model, **plain)


def side_columns(target: Target, args: TargetSFTConfig) -> dict[str, str]:
    """Inputs of the head that come from the data set, and the columns that hold them."""
    found = {"critical": args.critical_column} if "critical" in target.needs else {}
    if "ref_logp" in target.needs and args.weight_column is not None:
        found["weight"] = args.weight_column
    return found


def laid_out(name: str, column: str, features: list[Batch], where: Sequence[Span], shape: torch.Size) -> Tensor:
    """The head's input `name` as [B, T]: the column of `features` laid out like the tokens, zero on padding."""
    if column not in features[0]:
        raise ValueError(
            f"the target reads the column {column!r}, but the data set has only {', '.join(features[0])}. Add it, one "
            "value per token (or one per example), or name another with critical_column / weight_column."
        )
    pieces = [np.broadcast_to(feature[column], len(feature["input_ids"])) for feature in features]
    values = torch.from_numpy(np.concatenate(pieces).astype(np.float32))
    found = torch.zeros(shape, dtype=torch.float32)
    for row, start, stop in where:  # in the order of the features, which collators keep
        piece, values = values[: stop - start], values[stop - start :]
        found[row, start : start + len(piece)] = piece
    if name != "critical":
        return to_bits(found)
    if not bool(((found == 0) | (found == 1)).all()):
        raise ValueError(f"the column {column!r} marks critical tokens with 1 and all others with 0; it holds others.")
    return found.to(torch.int8)


def finish(dataset: Dataset, columns: Sequence[str], args: SFTConfig, packing: bool) -> Dataset:
    """A tokenised data set truncated, packed and shuffled as TRL does it, but `columns` along with the tokens."""
    workers: dict[str, Any] = {"num_proc": args.dataset_num_proc} if isinstance(dataset, Dataset) else {}
    kept = ["input_ids", "labels", *columns]
    dataset = dataset.map(align, fn_kwargs={"columns": list(columns)}, **workers).select_columns(kept)
    if packing:
        if args.max_length is None:
            raise ValueError("packing needs max_length: the length of a packed row. Set it, or packing=False.")
        if args.shuffle_dataset:
            dataset = dataset.shuffle(seed=args.seed)
        dataset = pack_dataset(dataset, args.max_length, args.packing_strategy, workers)
    elif args.max_length is not None:
        part = slice(-args.max_length, None) if args.truncation_mode == "keep_end" else slice(args.max_length)
        dataset = dataset.map(lambda row: {name: row[name][part] for name in kept}, **workers)
        dataset = dataset.filter(lambda row: any(label != IGNORED for label in row["labels"]), **workers)
    return dataset.shuffle(seed=args.seed) if args.shuffle_dataset else dataset


def align(row: Batch, columns: Sequence[str]) -> Batch:
    """The columns with one value per token; a single value is repeated for every token of its example."""
    length = len(row["input_ids"])
    aligned = {name: row[name] if isinstance(row[name], list) else [row[name]] * length for name in columns}
    for name, values in aligned.items():
        if len(values) != length:
            raise ValueError(
                f"column {name!r} holds {len(values)} values for a row of {length} tokens. Compute it on the tokenised "
                "data set and pass that (input_ids, labels and the column)."
            )
    return aligned
