"""Token-aligned columns through TRL's preparation, which truncates and packs only input_ids and labels."""

from collections.abc import Sequence
from copy import copy
from typing import Any

from datasets import Dataset
from trl import SFTConfig, pack_dataset

from qsft.targets.induced import LossTarget
from qsft.targets.target import Target
from qsft.targets.view import IGNORED
from qsft.train.config import TargetSFTConfig


def side_columns(target: Target | LossTarget, args: TargetSFTConfig) -> dict[str, str]:
    """Inputs of the head that come from the data set, and the columns that hold them."""
    found = {"critical": args.critical_column} if "critical" in target.needs else {}
    if "ref_logp" in target.needs and args.weight_column is not None:
        found["weight"] = args.weight_column
    return found


def untruncated(args: SFTConfig) -> SFTConfig:
    """The same settings with nothing for TRL to cut or reorder: the columns must be cut and reordered along."""
    args = copy(args)
    args.max_length, args.shuffle_dataset = None, False
    return args


def finish(dataset: Dataset, columns: Sequence[str], args: SFTConfig, packing: bool) -> Dataset:
    """A tokenised data set truncated, packed and shuffled as TRL does it, `columns` along with the tokens."""
    workers: dict[str, Any] = {"num_proc": args.dataset_num_proc} if isinstance(dataset, Dataset) else {}
    kept = ["input_ids", "labels", *columns]
    dataset = dataset.map(align, fn_kwargs={"columns": list(columns)}, **workers).select_columns(kept)
    if packing and args.max_length is None:
        raise ValueError("packing needs max_length: the length of a packed row. Set it, or packing=False.")
    if packing:
        if args.shuffle_dataset:
            dataset = dataset.shuffle(seed=args.seed)
        dataset = pack_dataset(dataset, args.max_length, args.packing_strategy, workers)
    elif args.max_length is not None:
        dataset = dataset.map(truncate, fn_kwargs={"columns": kept, "args": args}, **workers)
        dataset = dataset.filter(has_labels, **workers)
    return dataset.shuffle(seed=args.seed) if args.shuffle_dataset else dataset


def align(row: dict[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """The columns with one value per token; a single value is repeated for every token of its example."""
    length = len(row["input_ids"])
    aligned = {name: row[name] if isinstance(row[name], list) else [row[name]] * length for name in columns}
    for name, values in aligned.items():
        if len(values) != length:
            raise ValueError(
                f"column {name!r} holds {len(values)} values for a row of {length} tokens. It must be aligned with the "
                "tokens: compute it on the tokenised data set and pass that (input_ids, labels and the column)."
            )
    return aligned


def truncate(row: dict[str, Any], columns: Sequence[str], args: SFTConfig) -> dict[str, Any]:
    """The first (or last) max_length tokens of every column."""
    kept = slice(-args.max_length, None) if args.truncation_mode == "keep_end" else slice(args.max_length)
    return {name: row[name][kept] for name in columns}


def has_labels(row: dict[str, Any]) -> bool:
    """Whether any token of the row is trained."""
    return any(label != IGNORED for label in row["labels"])
