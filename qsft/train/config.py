# ruff: noqa: RUF009 (option() makes fields)
"""TargetSFTConfig: TRL's SFTConfig plus which target to train, and where its teacher comes from."""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trl import SFTConfig

BASE = "base"  # the teacher that is the student itself before training


def option(default: Any, text: str, *choices: str) -> Any:
    """A field that argparse and `qsft train --keys` can explain; a value outside `choices` is refused."""
    return field(default=default, metadata={"help": text, **({"choices": list(choices)} if choices else {})})


def as_dict(value: dict[str, Any] | str | None) -> dict[str, Any]:
    """A field that the command line gives as JSON, as the dict that __post_init__ made of it."""
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not a JSON object; write it as '{{\"name\": value}}'.")
    return value or {}


@dataclass
class TargetSFTConfig(SFTConfig):
    """Settings of `TargetSFTTrainer`: everything `SFTConfig` has, and the fields below.

    A target that reads a teacher needs one of `teacher_cache`, `teacher_model_name_or_path` or the trainer's
    argument `teacher`. A cache describes itself: its k, encoding and teacher are never repeated here.
    """

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, "target_kwargs", "teacher_model_init_kwargs"]  # noqa: RUF012

    # The target
    target: str = option("target", "Name of the target to train: a row of `qsft targets`, such as sft, dft or kd.")
    target_kwargs: dict[str, Any] | str | None = option(
        None, 'Hyper-parameters of the target as a dict or JSON, such as {"eta": 0.5, "tail": "ghost"}.'
    )
    loss_normalization: str = option(
        "tokens",
        "`tokens`: the loss is the sum over the label tokens of the whole optimiser step divided by their number. "
        "`micro_batch_mean`: the mean per micro-batch, then over micro-batches and processes.",
        "tokens",
        "micro_batch_mean",
    )

    # Where the teacher comes from
    teacher_model_name_or_path: str | None = option(
        None,
        "Model id or path of the teacher, or `base`: the student itself before training. Its top-k log-probs are "
        "written to `teacher_cache` before the first step, unless `teacher_live` is set.",
    )
    teacher_cache: str | None = option(
        None,
        "Directory of the teacher cache. Built or completed when a teacher model is given too; without one it must "
        "hold every document. Defaults to OUTPUT_DIR/teacher_cache when a teacher model is given.",
    )
    teacher_top_k: int = option(64, "Tokens per position that a cache built by the trainer keeps.")
    teacher_cache_encoding: str = option(
        "exact",
        "Encoding of a cache built by the trainer: `exact` (int32 ids, fp16 log-probs) or `compact`.",
        "exact",
        "compact",
    )
    teacher_live: bool = option(False, "Run the teacher in every step instead of reading a cache; it stays in memory.")
    teacher_missing: str = option(
        "error",
        "What to do with documents the cache does not hold: `error` stops before the first step, `self` trains them "
        "with the student's own distribution as the residual and counts them.",
        "error",
        "self",
    )
    teacher_model_init_kwargs: dict[str, Any] | str | None = option(
        None, "Keyword arguments for `from_pretrained` of the teacher, as a dict or JSON."
    )

    # What single rows read beside the teacher
    critical_column: str = option(
        "critical", "Column of the data set with one 0/1 per token: which tokens `cft` trains."
    )
    weight_column: str | None = option(
        None, "Column with one weight per example for `iw_sft`, instead of a reference model."
    )
    psft_block_steps: int = option(8, "Optimiser steps between two refreshes of `psft`'s old policy.")

    # Safety
    resume_with_other: list[str] | None = option(
        None,
        "What may differ from the checkpoint that is resumed, by name: data, learning_rate, seed, batch, max_length, "
        "target, teacher, … Everything else that decides the trajectory must be the same.",
    )
    resume_with_other_target: bool = option(False, "The same as resume_with_other=[target, teacher, reference].")
    checkpoint_digests: bool = option(
        True, "Record a digest of every file of a checkpoint and check it at resume; False compares sizes only."
    )
    check_head: bool = option(True, "Compare the fused head with full logits on a few tokens before the first step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for own in (known for known in fields(self) if known.name in TargetSFTConfig.__annotations__):
            allowed, value = own.metadata.get("choices"), getattr(self, own.name)
            if allowed and value not in allowed:
                raise ValueError(f"{own.name}={value!r} is not known. Choose one of {', '.join(allowed)}.")
        for name in ("psft_block_steps", "teacher_top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")

    @classmethod
    def own(cls, args: Any, model: Any) -> "TargetSFTConfig":
        """`args` if they are of this class, defaults if there are none; other configs lack the target's fields."""
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path or type(model).__name__
            return cls(f"{Path(name).name}-Target-SFT")
        if not isinstance(args, cls):
            raise TypeError(
                f"TargetSFTTrainer takes a TargetSFTConfig, not {type(args).__name__}: replace the class name. It has "
                "the same fields and those of the target."
            )
        return args
