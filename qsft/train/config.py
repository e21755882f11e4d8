# ruff: noqa: RUF009 (option() makes fields)
"""TargetSFTConfig: TRL's SFTConfig plus which target to train, and where its teacher comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from transformers.utils import logging
from trl import SFTConfig

logger = logging.get_logger(__name__)

BASE = "base"  # the teacher that is the student itself before training


def option(default: Any, text: str, choices: Sequence[str] | None = None) -> Any:
    """A field that argparse and `qsft train --keys` can explain; a value outside `choices` is refused."""
    return field(default=default, metadata={"help": text} | ({"choices": list(choices)} if choices else {}))


def as_dict(value: dict[str, Any] | str | None) -> dict[str, Any]:
    """A field that the command line gives as JSON, as the dict that __post_init__ made of it."""
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not a JSON object; write it as '{{\"name\": value}}'.")
    return value or {}


@dataclass
class TargetSFTConfig(SFTConfig):
    """Settings of `TargetSFTTrainer`: everything `SFTConfig` has, and the fields below.

    A target that reads a teacher needs one of `teacher_cache`, `teacher_model_name_or_path` or the trainer's
    argument `teacher`. Rows that anchor (sft_kl, asft, iw_sft) read `reference_model_name_or_path` instead. A cache
    describes itself: its k, encoding and teacher need not be repeated here; what is repeated must agree.
    """

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, "target_kwargs", "teacher_model_init_kwargs"]  # noqa: RUF012

    # The target
    target: str = option(None, "The target to train: a row of `qsft targets`, such as sft or dft. Default: target.")
    target_kwargs: dict[str, Any] | str | None = option(
        None, 'Hyper-parameters of the target as a dict or JSON, such as {"eta": 0.5, "tail": "ghost"}.'
    )
    loss_normalization: str = option(
        "tokens",
        "`tokens`: the mean over the label tokens of the whole optimiser step, all processes together. "
        "`micro_batch_mean`: the mean per micro-batch, then over micro-batches and processes.",
        choices=("tokens", "micro_batch_mean"),
    )
    head_kernel: str = option(
        "auto",
        "How the fused head computes: `torch`, `triton`, or `auto`: triton on a GPU that has it, where the target "
        "reads logits only at the label and at the teacher's tokens.",
        choices=("auto", "torch", "triton"),
    )

    # Where the teacher comes from
    teacher_model_name_or_path: str | None = option(
        None,
        "Model id or path of the teacher, or `base`: the student before training. Its top-k fill `teacher_cache` "
        "before the first step, or with `teacher_live` it runs in every step.",
    )
    teacher_cache: str | None = option(
        None,
        "Directory of the teacher cache, which must hold every document where no teacher model completes it. Default: "
        "a folder per teacher, k and encoding in $QSFT_CACHE or ~/.cache/qsft.",
    )
    reference_model_name_or_path: str = option(
        BASE,
        "What sft_kl, asft and iw_sft anchor to: `base` (the student before training), `teacher` (the teacher model) "
        "or a model id. With teacher_cache and no teacher model, that cache.",
    )
    teacher_top_k: int = option(
        None, "Tokens per position that a cache built by the trainer keeps. Default: 64; a cache that is there knows."
    )
    teacher_top_p: float | None = option(
        None, "Keep only the tokens that hold this share of the teacher's mass, at most teacher_top_k of them."
    )
    teacher_cache_encoding: str = option(
        None, "Encoding of a cache built by the trainer: `exact` (default) or `compact`.", choices=("exact", "compact")
    )
    teacher_batch_tokens: int = option(16_384, "Tokens per forward of a capture; halved when memory runs out.")
    teacher_live: bool = option(False, "Run the teacher in every step instead of reading a cache; it stays in memory.")
    teacher_missing: str = option(
        "error",
        "Documents the cache lacks: `error` stops before the first step, `self` trains them with the student's own "
        "distribution as the residual and counts them.",
        choices=("error", "self"),
    )
    teacher_model_init_kwargs: dict[str, Any] | str | None = option(None, "Arguments of the teacher's from_pretrained.")

    # What single rows read beside the teacher
    critical_column: str = option("critical", "Column with one 0/1 per token: which tokens `cft` trains.")
    weight_column: str | None = option(None, "Column with one weight per example for `iw_sft`, instead of a reference.")
    psft_block_steps: int = option(8, "Optimiser steps between two refreshes of `psft`'s old policy.")

    # Safety
    resume_with_other: list[str] | None = option(
        None,
        "What may differ from the checkpoint that is resumed, by name: data, learning_rate, seed, batch, max_length, "
        "target, teacher, …; everything else that decides the trajectory must be the same.",
    )
    resume_with_other_target: bool = option(False, "The same as resume_with_other=[target, teacher, reference].")
    checkpoint_digests: bool = option(True, "Check a digest of every file of a checkpoint at resume, not sizes only.")
    check_head: bool = option(True, "Compare the fused head with full logits on a few tokens before the first step.")

    def __post_init__(self) -> None:
        super().__post_init__()
        asked = {
            "top_k": self.teacher_top_k,
            "cache_encoding": self.teacher_cache_encoding,
            "top_p": self.teacher_top_p,
        }
        self.given_for_capture = frozenset(name for name, value in asked.items() if value is not None)
        self.teacher_top_k = 64 if self.teacher_top_k is None else self.teacher_top_k
        self.teacher_cache_encoding = self.teacher_cache_encoding or "exact"
        if self.target is None and self.loss_type == "dft":
            logger.warning("loss_type='dft' names a target: target='dft' is trained unless the trainer is given one.")
            self.target, self.loss_type = "dft", "nll"
        self.target = self.target or "target_sft"
        for own in (known for known in fields(self) if known.name in TargetSFTConfig.__annotations__):
            allowed, value = own.metadata.get("choices"), getattr(self, own.name)
            if allowed and value not in allowed:
                raise ValueError(f"{own.name}={value!r} is not known. Choose one of {', '.join(allowed)}.")
        for name in ("psft_block_steps", "teacher_top_k", "teacher_batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1.")

    @classmethod
    def own(cls, args: Any, model: Any) -> "TargetSFTConfig":
        """`args`, or a config with the same values and the target's fields at their defaults."""
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path or type(model).__name__
            return cls(f"{Path(name).name}-Target-SFT")
        if isinstance(args, cls):
            return args
        known = {known.name for known in fields(cls) if known.init}
        values = {name: value for name, value in args.to_dict().items() if name in known}
        hidden = {name: getattr(args, name) for name in values if name.endswith("_token")}  # to_dict() masks them
        return cls(**values | hidden)
