"""What cannot be right is refused before any work is done, or found before the first step, with what to do instead."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from datasets import IterableDataset
from peft import PeftModel
from transformers import PreTrainedModel
from transformers.utils import logging
from trl import SFTConfig

from qsft.targets.target import Target
from qsft.teacher.documents import Documents
from qsft.teacher.lookup import TeacherCache
from qsft.teacher.manifest import MANIFEST
from qsft.train.config import TargetSFTConfig

logger = logging.get_logger(__name__)

WHY_MISSING = (
    "A cache holds documents by their tokens and labels, so this usually means another max_length, chat template, "
    "tokenizer, loss mask or packing strategy than the one it was built with."
)
COPIED = "modules_to_save"  # how PEFT marks a layer of which it trains a full copy


def refuse_other_losses(args: SFTConfig, compute_loss_func: Callable[..., Any] | None) -> None:
    """A second loss beside the target would be silently ignored: name the target that replaces it."""
    if args.loss_type != "nll":
        raise ValueError(
            f"loss_type={args.loss_type!r} is set beside a target, but the target is the loss. Remove loss_type and "
            f"set target={args.loss_type!r}."
        )
    if args.label_smoothing_factor:
        raise ValueError(
            f"label_smoothing_factor={args.label_smoothing_factor} is set beside a target, but the target is the loss. "
            "Remove it and set target='label_smoothing' with target_kwargs="
            f"{{'lam': {args.label_smoothing_factor}}}."
        )
    if compute_loss_func is not None:
        raise ValueError(
            "compute_loss_func is set beside a target, but the target is the loss. Remove it and pass "
            "target=LossTarget(fn) to the trainer (any loss per token), or target=Target(trust, residual)."
        )


def refuse_vision(dataset: Iterable[dict[str, Any]] | None) -> None:
    row = next(iter(dataset), {}) if dataset is not None else {}
    if "image" in row or "images" in row:
        raise ValueError(
            "the data set holds images, which TargetSFTTrainer does not train on: a document is known by its tokens. "
            "Use text data, or TRL's SFTTrainer."
        )


def refuse_prompt_learning(model: PreTrainedModel | PeftModel, target: Target, teacher: Any) -> None:
    """Virtual tokens: PEFT pads the labels for them, but nothing else that has a value per token."""
    if not isinstance(model, PeftModel) or not model.active_peft_config.is_prompt_learning:
        return
    read = target.needs & {"teacher", "reference", "ref_logp", "old_logp", "critical", "document"}
    if read or teacher is not None:
        raise ValueError(
            f"{type(model.active_peft_config).__name__} is prompt learning: its virtual tokens shift every position, "
            f"so what this target reads per token ({', '.join(sorted(read)) or 'a teacher'}) would not line up. Use "
            "LoRA or another adapter on the weights, or a target without such inputs: sft, dft, gem, …"
        )


def refuse_penalised_loss(model: PreTrainedModel | PeftModel) -> None:
    """AdaLoRA adds a penalty to whatever loss the model returns: here a sum over tokens, which is divided later."""
    weight = getattr(model.active_peft_config, "orth_reg_weight", 0) if isinstance(model, PeftModel) else 0
    if weight:
        raise ValueError(
            f"AdaLoRA adds its penalty (orth_reg_weight={weight}) to the loss that the model returns. Here that is a "
            "sum over tokens, divided by their number afterwards, so the penalty would count for next to nothing. Use "
            "LoRA, or orth_reg_weight=0 where PEFT takes it."
        )


def all_of(train: Any, evaluation: Any) -> list[Any]:
    """The data sets of a run: evaluation may be one, a dict of several, or None."""
    return [train, *(evaluation.values() if isinstance(evaluation, dict) else [evaluation])]


def refuse_streaming(datasets: Iterable[Any], teacher: Any) -> None:
    """A model as the teacher of a stream: its documents are not known before the first step, so nothing is captured."""
    streams = any(isinstance(dataset, IterableDataset) for dataset in datasets)
    if not streams or teacher is None or teacher.live or teacher.model is None:
        return
    if teacher.path is None or not Path(teacher.path, MANIFEST).is_file():
        name = teacher.model if isinstance(teacher.model, str) else type(teacher.model).__name__
        raise ValueError(
            f"the data stream, so {name} cannot write its rows to a cache before the first step. Set teacher_live=True "
            "to run it in every step, or give a cache that holds the documents: build it with `qsft cache build` from "
            "the data set on disk and pass teacher_cache=DIRECTORY."
        )


def refuse_sharded_head_copy(model: PreTrainedModel | PeftModel, fsdp: bool) -> None:
    """A head trained through modules_to_save under FSDP: its gradient comes out wrong there, with plain TRL too."""
    base: Any = model.get_base_model() if fsdp and isinstance(model, PeftModel) else None
    if base is not None and hasattr(base.get_output_embeddings(), COPIED):
        raise ValueError(
            'modules_to_save=["lm_head"] gives wrong gradients under FSDP. Leave lm_head out of modules_to_save, or '
            "train with DDP or ZeRO (recipes/accelerate/zero3.yaml)."
        )


def refuse_parallelism(parallelism: Any, args: SFTConfig) -> None:
    """Ways of running that give the head a part of the sequence, or replicas of the model."""
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process, which Trainer would run as nn.DataParallel; its replicas "
            "do not carry the target's head. Start with `accelerate launch` or torchrun, or set CUDA_VISIBLE_DEVICES."
        )
    if parallelism is None:
        return
    if parallelism.cp_enabled:
        raise ValueError(
            "context parallelism shards the tokens of a batch but not the teacher's rows, and it drops the mask that "
            "separates packed documents. Set cp_size=1; use FSDP2 or ZeRO-3 for memory."
        )
    if parallelism.sp_enabled:
        raise ValueError(
            "DeepSpeed Ulysses reduces the model's own loss over the sequence shards, so a target would not be "
            "trained. Set sp_size=1; use FSDP2 or ZeRO-3 for memory."
        )


def refuse_missing_teacher(target: Target, args: TargetSFTConfig) -> NoReturn:
    """The target reads a teacher and none was given: show the one line to add."""
    raise ValueError(
        f"target {args.target!r} reads a teacher, but none was given. Add one line:\n"
        '    TargetSFTTrainer(..., teacher="Qwen/Qwen2.5-Math-1.5B-Instruct")\n'
        "It may be a model id, a model, a cache directory, or 'base' for the student before training; in a config it "
        "is teacher_model_name_or_path or teacher_cache. Targets that need none: sft, dft, beyond_log, profit, eaft, "
        f"gem, label_smoothing.\nIt was going to train {target!r}."
    )


def refuse_self_reference(target: Target, args: TargetSFTConfig) -> None:
    """A document without reference log-probs has no importance weight to fall back to."""
    if "ref_logp" in target.needs and args.teacher_missing == "self":
        raise ValueError(
            "teacher_missing='self' does not fit iw_sft: a document the cache lacks has no reference log-probs and so "
            "no weight. Add the missing documents to the cache, or give weights with weight_column."
        )


def refuse_missing(cache: TeacherCache, documents: Documents, missing: str) -> None:
    """Raise when the cache lacks documents; with missing="self" warn how many will train without a teacher."""
    absent = cache.missing(documents, check=False)
    if not absent:
        return
    count = f"{len(absent)} of {len(documents)} documents are not in the teacher cache {cache.path}"
    if missing == "self":
        logger.warning(f"{count}; they train with the student's own distribution as the residual (fallback_tokens).")
        return
    first = documents[absent[0]]["input_ids"]
    raise ValueError(
        f"{count} ({len(cache)} documents). The first has {len(first)} tokens and starts {first[:12].tolist()}. "
        f"{WHY_MISSING} `qsft cache build RECIPE` adds what is missing, as does teacher_model_name_or_path=NAME here; "
        "teacher_missing='self' trains those documents without a teacher."
    )


def keep_float_outputs(accelerator: Accelerator) -> None:
    """Make FSDP2 return the loss in float32, and reduce gradients in float32 where the user chose nothing.

    The loss is a sum over thousands of tokens, which bf16 would round to three digits. accelerate's own policy has one
    dtype for parameters, reduction and outputs; any other policy is a choice.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or plugin.fsdp_version != 2 or plugin.mixed_precision_policy is None:
        return
    policy = plugin.mixed_precision_policy
    chosen = not policy.param_dtype == policy.reduce_dtype == policy.output_dtype
    reduce = policy.reduce_dtype if chosen else torch.float32
    logger.info(f"FSDP2 returns the loss in float32 and reduces gradients in {reduce or policy.param_dtype}.")
    plugin.mixed_precision_policy = replace(policy, output_dtype=None, reduce_dtype=reduce)


def counts_hold(model: PreTrainedModel | PeftModel, accelerator: Accelerator, datasets: Iterable[Any]) -> bool:
    """Whether the labels that a collator counts are those the head sees.

    PEFT pads the labels of prompt learning, and accelerate may collate for all processes and hand out slices.
    """
    padded = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
    streams = any(isinstance(dataset, IterableDataset) for dataset in datasets)
    dispatched = streams if accelerator.dispatch_batches is None else accelerator.dispatch_batches
    return not padded and (accelerator.num_processes == 1 or not dispatched)
