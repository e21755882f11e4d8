"""Run metadata: the settings that determine a run's trajectory, saved with every checkpoint and compared on resume.

A resumed run must have the same trajectory settings as its checkpoint, except those named in `resume_allow_changed`.
More steps or epochs, logging, saving, and another number of processes at the same global batch are recorded, but not
compared. A plain object: the trainer calls it, it knows no trainer.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from peft import PeftModel
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from qsft.files import write_json
from qsft.fingerprints import ADAPTER_BOOKKEEPING, config_digest, digest_json, sampled_weights_digest
from qsft.run_directory import RUN_RECORD
from qsft.teacher.documents import Documents
from qsft.train.checkpoints import Checkpoint, read_run_record
from qsft.validation import did_you_mean

# Settings of the config that determine the trajectory, under their own names.
TRAJECTORY_SETTINGS = (
    "seed", "data_seed", "full_determinism", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs",
    "warmup_steps", "warmup_ratio", "optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
    "max_grad_norm", "max_length", "packing", "packing_strategy", "bf16", "fp16", "neftune_noise_alpha",
    "loss_normalization", "psft_block_steps", "router_aux_loss_coef", "ignore_data_skip", "train_sampling_strategy",
)  # fmt: skip
# What `describe_trajectory` computes beside them.
COMPUTED_SETTINGS = ("target", "teacher", "data", "batch", "model", "base_weights")
# Settings that are recorded and may change on resume.
RECORDED_SETTINGS = (
    "max_steps", "num_train_epochs", "per_device_train_batch_size", "gradient_accumulation_steps", "world_size",
    "save_steps", "logging_steps", "output_dir",
)  # fmt: skip
REFERENCE = "reference"  # in `resume_allow_changed` the same as teacher
# Values that one of two runs may not know: streamed data, and weights that are sharded over processes.
MAY_BE_UNKNOWN = ("data", "base_weights")


@dataclass
class RunRecord:
    """What run.json holds: the run's id, where it started, and its settings.

    Args:
        id: of the run.
        parent: the run and checkpoint that it continues; None unless they are another run's.
        name: of the target in the registry; None for the user's own target.
        trajectory: the settings that must be equal on resume (`describe_trajectory`).
        recorded: the settings that may change (`describe_recorded`).
    """

    id: str
    parent: dict[str, Any] | None
    name: str | None
    trajectory: dict[str, Any]
    recorded: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def save(self, output_dir: Path) -> None:
        write_json(output_dir / RUN_RECORD, self.to_json())


def check_setting_names(names: Iterable[str], args: Any) -> None:
    """Raise ValueError for a name in `resume_allow_changed` that no run of this config records."""
    known = [*COMPUTED_SETTINGS, REFERENCE, *(name for name in TRAJECTORY_SETTINGS if hasattr(args, name))]
    for name in names:
        if name not in known:
            raise ValueError(
                f"resume_allow_changed names {name!r}, which no run records.{did_you_mean(name, known)} Choose from "
                f"{', '.join(known)}."
            )


def describe_trajectory(
    args: Any, model: Any, train_dataset: Any, batch_size: int, target: Any, teacher: Any
) -> dict[str, Any]:
    """What must be equal for a checkpoint to be continued, by the names that `resume_allow_changed` takes.

    Args:
        args: the TargetSFTConfig.
        batch_size: examples per optimizer step over all processes.
        target: the target as JSON (`Target.record()`).
        teacher: the identity of the teacher or reference as JSON, or None.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    tokenized = isinstance(train_dataset, Dataset) and "input_ids" in train_dataset.column_names
    trajectory = {
        "target": target,
        "teacher": teacher,
        "data": Documents(train_dataset).digest if tokenized else None,
        "batch": batch_size,
        "model": {"config": config_digest(base.config), "adapter": _adapter_digest(model)},
        "base_weights": _frozen_weights_digest(model),
    }
    for name in TRAJECTORY_SETTINGS:
        if hasattr(args, name):
            trajectory[name] = getattr(args, name)
    return _as_json(trajectory)


def describe_recorded(args: Any, model: Any) -> dict[str, Any]:
    """What is recorded without being compared; the initial weights of full fine-tuning among it."""
    recorded = {name: getattr(args, name) for name in RECORDED_SETTINGS}
    if not isinstance(model, PeftModel):
        recorded["initial_weights"] = sampled_weights_digest(model.named_parameters())
    return _as_json(recorded)


def continue_run(
    checkpoint: Path, output_dir: Path, trajectory: dict[str, Any], allow_changed: set[str]
) -> tuple[str, dict[str, Any] | None]:
    """The id and parent of a run that resumes from `checkpoint`: the same run when nothing changed, else a new one.

    Raises:
        ValueError: a setting changed that is not in `allow_changed`.
    """
    saved = Checkpoint(checkpoint).record
    changed = check_same_trajectory(checkpoint, saved.get("trajectory", {}), trajectory, allow_changed)
    saved_id = saved.get("id")
    is_here = checkpoint.parent.resolve() == output_dir.resolve()
    if saved_id and is_here and not changed:
        current = read_run_record(output_dir) or {}
        same_run = current.get("id") == saved_id
        return saved_id, current.get("parent") if same_run else None
    return new_run_id(), {"run": saved_id, "checkpoint": str(checkpoint), "changed": changed}


def new_run_id() -> str:
    return uuid.uuid4().hex[:12]


def check_same_trajectory(
    checkpoint: Path, saved: dict[str, Any], current: dict[str, Any], allow_changed: set[str]
) -> list[str]:
    """The names of the settings that changed since the checkpoint.

    Raises:
        ValueError: one of them is not in `allow_changed`.
    """
    changed = []
    for name, value in current.items():
        if name not in saved or saved[name] == value:
            continue
        one_is_unknown = saved[name] is None or value is None
        if name in MAY_BE_UNKNOWN and one_is_unknown:
            continue
        changed.append(name)
    not_allowed = [name for name in changed if name not in allow_changed]
    if not_allowed:
        lines = "".join(
            f"\n{name}:\n  saved   {_text(saved[name])}\n  current {_text(current[name])}" for name in not_allowed
        )
        raise ValueError(
            f"{checkpoint} was trained with a different {' and '.join(not_allowed)}:{lines}\nResuming would mix both. "
            f"Use the same settings, start a new run in another output_dir, or allow the change with "
            f"resume_allow_changed={json.dumps(not_allowed)}."
        )
    return changed


class UseLearningRate(TrainerCallback):
    """Gives a resumed run a new peak learning rate, in place of the one that the checkpoint's scheduler loaded."""

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        set_peak_learning_rate(kwargs["optimizer"], kwargs["lr_scheduler"], self.learning_rate)


def set_peak_learning_rate(optimizer: Any, scheduler: Any, learning_rate: float) -> None:
    """Rescale a loaded schedule to another peak, at the step it has reached.

    Raises:
        ValueError: the scheduler is not a LambdaLR, as all of Trainer's with a peak are.
    """
    inner = getattr(scheduler, "scheduler", scheduler)  # accelerate wraps it
    if not isinstance(inner, LambdaLR):
        raise ValueError(
            f"the learning rate cannot be changed on resume with {type(inner).__name__}. Start a new run with the "
            "checkpoint as the model."
        )
    factors = [factor_at(inner.last_epoch) for factor_at in inner.lr_lambdas]
    inner.base_lrs = [learning_rate] * len(factors)
    inner._last_lr = [learning_rate * factor for factor in factors]
    for group, rate in zip(optimizer.param_groups, inner._last_lr, strict=True):
        group["initial_lr"] = learning_rate
        group["lr"] = rate


def _adapter_digest(model: Any) -> str | None:
    if not isinstance(model, PeftModel):
        return None
    config = model.active_peft_config.to_dict()
    return digest_json(_as_json({name: value for name, value in config.items() if name not in ADAPTER_BOOKKEEPING}))


def _frozen_weights_digest(model: Any) -> str | None:
    """The digest of the weights that an adapter leaves frozen: another base model is another run."""
    if not isinstance(model, PeftModel):
        return None
    return sampled_weights_digest(pair for pair in model.named_parameters() if not pair[1].requires_grad)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _as_json(value: Any) -> Any:
    """The value as it is after being written and read again: a tuple becomes a list."""

    def convert(other: Any) -> Any:
        return sorted(other) if isinstance(other, set) else str(other)

    return json.loads(json.dumps(value, default=convert))
