"""Columns of the data set that the loss reads, one value per token: critical tokens, weights, any `Column`.

TRL's preparation truncates, packs and shuffles `input_ids` and `labels` only. Here the same is done with further
columns, and a collated batch gets them aligned with its tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from torch import Tensor
from trl import SFTConfig, pack_dataset

from qsft.losses.head import COLUMN_INPUT, to_bits
from qsft.targets.target import Target
from qsft.targets.trust import COLUMN_NEED
from qsft.targets.view import IGNORED
from qsft.teacher.documents import Span

Batch = dict[str, Any]


def columns_read_by(target: Target, args: Any) -> dict[str, str]:
    """{name of the head's input: column of the data set} for what the target reads from the data.

    Args:
        args: a TargetSFTConfig, for `critical_column` and `weight_column`.
    """
    columns = {}
    if "critical" in target.needs:
        columns["critical"] = args.critical_column
    if "ref_logp" in target.needs and args.weight_column is not None:
        columns["weight"] = args.weight_column
    for need in sorted(target.needs):
        if need.startswith(COLUMN_NEED):
            column = need.removeprefix(COLUMN_NEED)
            columns[f"{COLUMN_INPUT}{column}"] = column
    return columns


def check_columns_exist(dataset: Any, columns: dict[str, str]) -> None:
    """Raise ValueError when the data set lacks a column that the target reads."""
    available = getattr(dataset, "column_names", None)
    if available is None:  # a stream that does not know its columns
        return
    for name, column in columns.items():
        if column not in available:
            settings = {"critical": "critical_column", "weight": "weight_column"}
            remedy = f", or name another column with {settings[name]}" if name in settings else ""
            raise ValueError(
                f"the target reads the column {column!r}, but the data set has only {', '.join(available)}. Add it, "
                f"one value per token (or one per example){remedy}."
            )


def prepare_with_columns(
    dataset: Dataset | IterableDataset, columns: Sequence[str], args: SFTConfig, packing: bool
) -> Dataset | IterableDataset:
    """Truncate, pack and shuffle a tokenized data set as TRL does, with `columns` beside the tokens.

    Args:
        dataset: tokenized by TRL with labels, not yet truncated, packed or shuffled.
    """
    map_kwargs: dict[str, Any] = {"num_proc": args.dataset_num_proc} if isinstance(dataset, Dataset) else {}
    kept = ["input_ids", "labels", *columns]
    dataset = dataset.map(one_value_per_token, fn_kwargs={"columns": list(columns)}, **map_kwargs).select_columns(kept)
    if packing:
        if args.max_length is None:
            raise ValueError("packing needs max_length, the length of a packed example. Set it, or packing=False.")
        if args.shuffle_dataset:
            dataset = dataset.shuffle(seed=args.seed)
        dataset = pack_dataset(dataset, args.max_length, args.packing_strategy, map_kwargs)
    elif args.max_length is not None:
        keep_end = args.truncation_mode == "keep_end"
        part = slice(-args.max_length, None) if keep_end else slice(args.max_length)
        dataset = dataset.map(lambda example: {name: example[name][part] for name in kept}, **map_kwargs)
        dataset = dataset.filter(lambda example: any(label != IGNORED for label in example["labels"]), **map_kwargs)
    return dataset.shuffle(seed=args.seed) if args.shuffle_dataset else dataset


def one_value_per_token(example: Batch, columns: Sequence[str]) -> Batch:
    """The columns as lists with one value per token; a single value is repeated for every token of its example."""
    length = len(example["input_ids"])
    aligned = {}
    for name in columns:
        values = example[name] if isinstance(example[name], list) else [example[name]] * length
        if len(values) != length:
            raise ValueError(
                f"column {name!r} has {len(values)} values for an example of {length} tokens. Compute it on the "
                "tokenized data set and pass that (input_ids, labels and the column)."
            )
        aligned[name] = values
    return aligned


def batch_column(name: str, column: str, features: list[Batch], spans: Sequence[Span], shape: torch.Size) -> Tensor:
    """The head's input `name` [B, T]: the column of `features` at the positions of their tokens, 0 on padding.

    Args:
        spans: where the documents of the features lie in the batch, in the order of the features.

    Raises:
        ValueError: the column of critical tokens has values other than 0 and 1.
    """
    per_feature = [np.broadcast_to(feature[column], len(feature["input_ids"])) for feature in features]
    values = torch.from_numpy(np.concatenate(per_feature).astype(np.float32))
    result = torch.zeros(shape, dtype=torch.float32)
    used = 0
    for row, start, stop in spans:
        piece = values[used : used + stop - start]
        result[row, start : start + len(piece)] = piece
        used += stop - start
    if name != "critical":
        return to_bits(result)
    if not bool(((result == 0) | (result == 1)).all()):
        raise ValueError(f"the column {column!r} must mark critical tokens with 1 and all others with 0.")
    return result.to(torch.int8)
