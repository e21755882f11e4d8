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
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import MANIFEST
from qsft.train.config import TargetSFTConfig

logger = logging.get_logger(__name__)

WHY_MISSING = (
    "A cache holds documents by their tokens and labels, so this usually means another max_length, chat template, "
    "tokenizer, loss mask or packing strategy than the one it was built with."
)


def refuse_other_losses(args: SFTConfig, compute_loss_func: Callable[..., Any] | None) -> None:
    """A second loss beside the target would be silently ignored: name the target that replaces it."""
    kind, lam = args.loss_type, args.label_smoothing_factor
    instead = {
        "loss_type": kind != "nll" and f"set target={kind!r}",
        "label_smoothing_factor": lam and f"set target='label_smoothing' with target_kwargs={{'lam': {lam}}}",
        "compute_loss_func": compute_loss_func and "pass target=LossTarget(fn), or target=Target(trust, residual)",
    }
    for name, remedy in instead.items():
        if remedy:
            raise ValueError(f"{name} is set beside a target, but the target is the loss. Remove it and {remedy}.")


def refuse_vision(dataset: Iterable[dict[str, Any]] | None) -> None:
    row = next(iter(dataset), {}) if dataset is not None else {}
    if "image" in row or "images" in row:
        raise ValueError("the data set holds images: a document is known by its tokens. Use text, or TRL's SFTTrainer.")


def refuse_adapter(model: PreTrainedModel | PeftModel, target: Target, teacher: Any, fsdp: bool) -> None:
    """Adapters that do not go together with the target, or with FSDP."""
    if not isinstance(model, PeftModel):
        return
    config: Any = model.active_peft_config
    base: Any = model.get_base_model()
    # Virtual tokens: PEFT pads the labels for them, but nothing else that has a value per token.
    read = target.needs & {"teacher", "reference", "ref_logp", "old_logp", "critical", "document"}
    if config.is_prompt_learning and (read or teacher is not None):
        raise ValueError(
            f"{type(config).__name__} is prompt learning: its virtual tokens shift what this target reads per token "
            f"({', '.join(sorted(read)) or 'a teacher'}). Use LoRA, or a target without such inputs: sft, dft, gem, …"
        )
    if weight := getattr(config, "orth_reg_weight", 0):
        raise ValueError(
            f"AdaLoRA adds its penalty (orth_reg_weight={weight}) to the model's loss, here a sum over tokens: beside "
            "it the penalty would count for next to nothing. Use LoRA, or orth_reg_weight=0 where PEFT takes it."
        )
    if fsdp and hasattr(base.get_output_embeddings(), "modules_to_save"):  # with plain TRL too
        raise ValueError('modules_to_save=["lm_head"] gives wrong gradients under FSDP. Drop it, or use DDP or ZeRO.')


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
            "or build a cache of the data set on disk with `qsft cache build` and pass teacher_cache=DIRECTORY."
        )


def refuse_parallelism(parallelism: Any, args: SFTConfig) -> None:
    """Ways of running that give the head a part of the sequence, or replicas of the model."""
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process, which Trainer would run as nn.DataParallel; its replicas "
            "do not carry the target's head. Start with `accelerate launch` or torchrun, or set CUDA_VISIBLE_DEVICES."
        )
    if parallelism is not None and parallelism.cp_enabled:
        raise ValueError(
            "context parallelism shards the tokens of a batch but not the teacher's rows, and drops the mask between "
            "packed documents. Set cp_size=1; use FSDP2 or ZeRO-3 for memory."
        )
    if parallelism is not None and parallelism.sp_enabled:
        raise ValueError(
            "DeepSpeed Ulysses reduces the model's own loss over the sequence shards, so a target would not be "
            "trained. Set sp_size=1; use FSDP2 or ZeRO-3 for memory."
        )


def refuse_missing_teacher(target: Target, args: TargetSFTConfig) -> NoReturn:
    raise ValueError(
        f"target {args.target!r} ({target!r}) reads a teacher, but none was given. Add one line:\n"
        '    TargetSFTTrainer(..., teacher="Qwen/Qwen2.5-Math-1.5B-Instruct")\n'
        "It may be a model id, a model, a cache directory, or 'base' for the student before training; in a config it "
        "is teacher_model_name_or_path or teacher_cache. Targets that need none: sft, dft, eaft, gem, …"
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
        f"{WHY_MISSING} `qsft cache build RECIPE` or teacher_model_name_or_path=NAME add what is missing; "
        "teacher_missing='self' trains it without a teacher."
    )


def keep_float_outputs(accelerator: Accelerator) -> None:
    """Make FSDP2 return the loss in float32, and reduce gradients in float32 where the user chose nothing.

    The loss is a sum over thousands of tokens: bf16 rounds it to three digits. accelerate's own policy has one dtype.
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
    """Whether the labels that a collator counts are those the head sees."""
    # PEFT pads the labels of prompt learning, and accelerate may collate for all processes and hand out slices.
    padded = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
    streams = any(isinstance(dataset, IterableDataset) for dataset in datasets)
    dispatched = streams if accelerator.dispatch_batches is None else accelerator.dispatch_batches
    return not padded and (accelerator.num_processes == 1 or not dispatched)
