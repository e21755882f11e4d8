"""The keys of a recipe: the data room's, the model's, the trainer's, and the few that only a recipe knows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple, get_type_hints

from qsft.data.load import DataSettings


@dataclass
class RecipeSettings(DataSettings):
    """What a recipe says beyond the model's and the trainer's configuration."""

    curate: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": 'Train on what a data-level method makes of the data: {"method": "rft", "n": 8}. Its settings are '
            "those of `qsft curate METHOD --help`; `out` is where it is kept (default: output_dir/curated)."
        },
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Sequences per optimiser step over all processes. per_device_train_batch_size becomes at most the "
            "share of one process, and gradient_accumulation_steps the rest. Rows are cut to a multiple of it."
        },
    )
    eval_split: str | None = field(
        default=None, metadata={"help": "Split to report the loss on while training (with eval_strategy)."}
    )
    eval_tasks: str | None = field(
        default=None, metadata={"help": "What `qsft eval RECIPE` measures: math, medical, or names of tasks."}
    )
    eval_protocol: str | None = field(
        default=None, metadata={"help": "How `qsft eval RECIPE` samples and grades, such as paper-math or avg16."}
    )
    target_protocols: dict[str, str] | None = field(
        default=None,
        metadata={"help": 'Targets that are evaluated otherwise than by eval_protocol: {"target": "avg16"}.'},
    )
    dry_run: bool = field(
        default=False, metadata={"help": "Print configuration, data, steps and the state of the cache, and stop."}
    )


class Key(NamedTuple):
    """One key of a recipe: who reads it, its type, its help."""

    owner: type
    hint: Any
    help: str
    choices: tuple[str, ...]


# TRL's spelling of keys that are called otherwise here.
ALIASES = {"dataset_name": "dataset", "dataset_train_split": "dataset_split", "dataset_test_split": "eval_split"}

# Where rows come from and which of them: said about one data set, so another one starts from the defaults.
ORIGIN = ("data_dir", "response", "sample_rows", "dataset_config", "dataset_revision", "dataset_split")


@cache
def keys() -> dict[str, Key]:
    """Every key a recipe may hold, in the order recipe, model, training."""
    from trl import ModelConfig

    from qsft.train.config import TargetSFTConfig

    table: dict[str, Key] = {}
    for owner in (RecipeSettings, ModelConfig, TargetSFTConfig):
        hints = get_type_hints(owner)
        for item in fields(owner):
            if item.init:
                choices = tuple(item.metadata.get("choices", ()))
                table[item.name] = Key(owner, hints[item.name], item.metadata.get("help", ""), choices)
    return table


def run_name(target: str, hparams: Mapping[str, Any]) -> str:
    """What a run's directory is called: the target and what is special about it.

    >>> run_name("target", {"eta": 0.2})
    'target-eta0.2'
    """
    return "-".join([target, *(f"{key}{value}" for key, value in hparams.items())])


def split_batch(global_batch: int, per_device: int, processes: int) -> tuple[int, int]:
    """(per-device batch, accumulation steps) whose product over all processes is the global batch.

    per-device batch = min(the recipe's, global / processes); an error names the counts that work.
    """
    if global_batch < 1 or per_device < 1:
        raise ValueError(f"global_batch_size={global_batch} and per_device_train_batch_size={per_device} must be ≥ 1.")
    share, rest = divmod(global_batch, processes)
    if rest:
        raise ValueError(
            f"global_batch_size={global_batch} cannot be divided over {processes} processes. Process counts that work: "
            f"{_list(divisors(global_batch))}. Or set --global_batch_size to a multiple of {processes}."
        )
    batch = min(per_device, share)
    if share % batch:
        shares = {n: global_batch // n for n in divisors(global_batch)}
        working = [n for n, share in shares.items() if share % min(per_device, share) == 0]
        raise ValueError(
            f"global_batch_size={global_batch} over {processes} processes is {share} sequences each, which "
            f"per_device_train_batch_size={per_device} does not divide. Per-device sizes that work: "
            f"{_list(divisors(share))}; process counts that work with {per_device}: {_list(working)}."
        )
    return batch, share // batch


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
