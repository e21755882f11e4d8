# ruff: noqa: RUF009 (option() makes dataclass fields)
"""TargetSFTConfig: TRL's SFTConfig plus the target to train and where its teacher comes from."""

import json
import math
from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from transformers.utils import logging
from trl import SFTConfig

from qsft.run_directory import BASE
from qsft.targets.registry import DEFAULT_TARGET, make_target
from qsft.train.run_record import check_setting_names
from qsft.validation import check_choice

logger = logging.get_logger(__name__)

DEFAULT_TOP_K = 64
DEFAULT_ENCODING = "exact"
DICT_FIELDS = ("target_kwargs", "teacher_model_init_kwargs")
AT_LEAST_ONE = ("psft_block_steps", "teacher_top_k", "teacher_batch_tokens")


def option(default: Any, text: str, choices: Sequence[str] | None = None) -> Any:
    """A dataclass field with a help text for the command line; `choices` are checked by `validate_fields`."""
    metadata: dict[str, Any] = {"help": text}
    if choices:
        metadata["choices"] = list(choices)
    return field(default=default, metadata=metadata)


def as_dict(value: dict[str, Any] | str | None) -> dict[str, Any]:
    """The dict of a field that the command line gives as JSON and `__post_init__` has parsed; {} for None."""
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not a JSON object; write it as '{{\"name\": value}}'.")
    return value or {}


@dataclass
class TargetSFTConfig(SFTConfig):
    """Settings of `TargetSFTTrainer`: every field of `SFTConfig`, and the fields below.

    A target that reads a teacher needs one of `teacher_cache`, `teacher_model_name_or_path` or the trainer's argument
    `teacher`. The targets sft_kl, asft and iw_sft read `reference_model_name_or_path` instead. An existing cache
    stores its own top-k, encoding and teacher. They need not be repeated here. If they are, they must agree.
    """

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, *DICT_FIELDS]  # noqa: RUF012

    # The target
    target: str = option(DEFAULT_TARGET, "The target to train, by its name in `qsft targets`, such as sft or dft.")
    target_kwargs: dict[str, Any] | str | None = option(
        None, 'Hyper-parameters of the target as a dict or JSON, such as {"eta": 0.5, "tail": "ghost"}.'
    )
    loss_normalization: str = option(
        "tokens",
        "How the loss is averaged. `tokens`: over the label tokens of the whole optimizer step on all processes. "
        "`micro_batch_mean`: first per micro-batch, then over micro-batches and processes.",
        choices=("tokens", "micro_batch_mean"),
    )
    head_kernel: str = option(
        "auto",
        "How the fused head computes: `torch`, `triton` or `auto`. `auto` uses triton on a GPU if it is installed and "
        "the target reads logits only at the label and at the teacher's tokens.",
        choices=("auto", "torch", "triton"),
    )
    head_tile_mib: float | None = option(
        None,
        "Maximum memory for the head's tile of logits, in MiB. Default: 512 tokens at a time on a CPU; on a GPU 512 "
        "MiB, or as much as the gradient of the head's weight. A smaller tile needs less memory and more time. The "
        "results are equal up to rounding.",
    )

    # Where the teacher comes from
    teacher_model_name_or_path: str | None = option(
        None,
        "Model id or path of the teacher, or `base` for the student before training. Its top-k log-probs are written "
        "to `teacher_cache` before the first step. With `teacher_live`, the teacher runs in every step instead.",
    )
    teacher_cache: str | None = option(
        None,
        "Directory of the teacher cache. Without a teacher model, it must contain every document. Default: a "
        "directory per teacher, top-k and encoding in $QSFT_CACHE or ~/.cache/qsft.",
    )
    reference_model_name_or_path: str = option(
        BASE,
        "Reference model of sft_kl, asft and iw_sft: `base` (the student before training), `teacher` (the teacher "
        "model) or a model id. With teacher_cache and no teacher model, the reference is read from that cache.",
    )
    teacher_top_k: int | None = option(
        None,
        "Number of tokens per position in a new cache. Default: 64. An existing cache keeps its own value.",
    )
    teacher_top_p: float | None = option(
        None,
        "Keep only the most likely tokens that together have this share of the teacher's mass, at most teacher_top_k "
        "tokens.",
    )
    teacher_cache_encoding: str | None = option(
        None,
        "Encoding of a new cache: `exact` or `compact`. Default: exact. An existing cache keeps its own encoding.",
        choices=("exact", "compact"),
    )
    teacher_batch_tokens: int = option(16_384, "Tokens per forward pass of a capture. Halved when memory runs out.")
    teacher_live: bool = option(
        False, "Run the teacher in every step instead of reading a cache. The teacher stays in memory."
    )
    teacher_missing: str = option(
        "error",
        "What to do with documents that are not in the cache. `error` stops before the first step. `student` trains "
        "them with the student's own distribution as the residual, and logs the number of their tokens.",
        choices=("error", "student"),
    )
    teacher_model_init_kwargs: dict[str, Any] | str | None = option(
        None, "Keyword arguments for `from_pretrained` of the teacher."
    )

    # What some targets read beside the teacher
    critical_column: str = option("critical", "Column with 0 or 1 per token. `cft` trains the tokens with 1.")
    weight_column: str | None = option(
        None, "Column with one weight per example. `iw_sft` reads it instead of a reference."
    )
    psft_block_steps: int = option(8, "Optimizer steps between two refreshes of `psft`'s old policy.")

    # Safety
    resume_allow_changed: list[str] | None = option(
        None,
        "Names of settings that may differ from those of the resumed checkpoint: data, learning_rate, seed, batch, "
        "max_length, target, teacher, … All other settings that determine the trajectory must be equal.",
    )
    checkpoint_digests: bool = option(True, "On resume, check the digest of every file, and not only its size.")
    check_head: bool = option(True, "Compare the fused head with full logits on a few tokens before the first step.")
    stop_on_nonfinite_loss: bool = option(
        True,
        "Stop with an error when the loss is NaN or infinite, before it reaches a checkpoint. Trainer would continue.",
    )

    def __post_init__(self) -> None:
        use_new_name_of_checkpointing(self)
        check_json_objects(self)
        super().__post_init__()
        validate_fields(self)


def check_json_objects(args: Any) -> None:
    """Raise ValueError for a dict that the command line gave as text, unless it is a JSON object."""
    for name in DICT_FIELDS:
        text = getattr(args, name)
        if not isinstance(text, str):
            continue
        try:
            is_object = isinstance(json.loads(text), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise ValueError(f"{name}={text!r} is not a JSON object; write it as '{{\"name\": value}}'.")


def use_new_name_of_checkpointing(args: Any) -> None:
    """Move gradient_checkpointing to activation_checkpointing where transformers has renamed it (5.23).

    TRL sets the old name by default, for which transformers would warn in every run. transformers sets the old name
    again from the new one.
    """
    for old, new in (
        ("gradient_checkpointing", "activation_checkpointing"),
        ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"),
    ):
        if hasattr(args, new) and getattr(args, old) is not None:
            if getattr(args, new) is None:
                setattr(args, new, getattr(args, old))
            setattr(args, old, None)


def own_fields() -> list[Field[Any]]:
    """The fields that TargetSFTConfig adds to SFTConfig."""
    return [own for own in fields(TargetSFTConfig) if own.name in TargetSFTConfig.__annotations__]


def validate_fields(args: Any) -> None:
    """Raise ValueError for values of TargetSFTConfig's own fields that cannot be trained with."""
    for own in own_fields():
        value = getattr(args, own.name)
        choices = own.metadata.get("choices")
        if choices and value is not None:
            check_choice(own.name, value, tuple(choices))
        if own.name in AT_LEAST_ONE and value is not None and value < 1:
            raise ValueError(f"{own.name} must be at least 1, got {value}.")
    check_setting_names(args.resume_allow_changed or (), args)
    if args.teacher_top_p is not None and not 0 < args.teacher_top_p <= 1:
        raise ValueError(f"teacher_top_p must be above 0 and at most 1, got {args.teacher_top_p}.")
    if args.head_tile_mib is not None and not 0 < args.head_tile_mib < math.inf:
        raise ValueError(
            f"head_tile_mib must be a positive number of MiB, got {args.head_tile_mib}. Leave it out for the default."
        )
    if not isinstance(args.target, str):
        raise TypeError(
            f"target of the config must be a name (see `qsft targets`), got {type(args.target).__name__}. Pass a "
            "Target or a LossTarget to the trainer: TargetSFTTrainer(..., target=...)."
        )
    if not isinstance(args.target_kwargs, dict | str | None):
        raise TypeError(
            f"target_kwargs must be a dict such as {{'eta': 0.2}}, got {type(args.target_kwargs).__name__}."
        )
    make_target(args.target, **as_dict(args.target_kwargs))
    if args.loss_type == "dft" and args.target == "dft":
        args.loss_type = "nll"  # both name the same loss; TRL would build its own for it
    if args.loss_type != "nll":
        raise ValueError(
            f"target={args.target!r} and loss_type={args.loss_type!r} name two losses. Remove loss_type; "
            f"target='dft' trains what loss_type='dft' does."
        )


def adopt_config(args: Any, model: Any) -> Any:
    """The config to train with: `args` itself where possible, with the fields that TargetSFTConfig adds.

    A script that passes TRL's SFTConfig, or its own subclass, keeps that object and its type; the missing fields are
    set on it to their defaults. Plain TrainingArguments become a TargetSFTConfig, as TRL makes an SFTConfig of them.
    """
    if args is None:
        name = model if isinstance(model, str) else model.config._name_or_path or type(model).__name__
        return TargetSFTConfig(f"{Path(name).name}-Target-SFT")
    if isinstance(args, TargetSFTConfig):
        return args
    if isinstance(args, SFTConfig):
        adopted: Any = args
        for own in own_fields():
            if not hasattr(args, own.name):
                assert own.default is not MISSING
                setattr(args, own.name, own.default)
        if adopted.loss_type == "dft" and adopted.target == DEFAULT_TARGET:
            logger.warning("loss_type='dft' selects target='dft' unless the trainer is given a target.")
            adopted.target = "dft"
        validate_fields(adopted)
        return adopted
    names = {own.name for own in fields(TargetSFTConfig) if own.init}
    values = {name: value for name, value in args.to_dict().items() if name in names}
    for name in values:
        if name.endswith("_token"):  # to_dict() masks secrets
            values[name] = getattr(args, name)
    return TargetSFTConfig(**values)
