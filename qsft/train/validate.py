"""Checks of what a trainer is given: what cannot be trained correctly raises an error before any work is done."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from accelerate import Accelerator
from datasets import Dataset, IterableDataset
from peft import PeftModel
from transformers import PreTrainedModel
from transformers.utils import logging
from trl import SFTConfig

from qsft.targets.view import IGNORED
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents
from qsft.validation import did_you_mean

logger = logging.get_logger(__name__)

WHY_MISSING = (
    "A cache finds documents by their tokens and labels, so this usually means another max_length, chat template, "
    "tokenizer, loss mask or packing strategy than the cache was built with."
)


def check_no_other_loss(args: SFTConfig, compute_loss_func: Callable[..., Any] | None) -> None:
    """Raise ValueError for a second loss beside the target, which would be ignored."""
    smoothing = args.label_smoothing_factor
    if smoothing:
        raise ValueError(
            f"label_smoothing_factor={smoothing} is set beside a target, but the target is the loss. Remove it and set "
            f"target='label_smoothing' with target_kwargs={{'lam': {smoothing}}}."
        )
    if compute_loss_func is not None:
        raise ValueError(
            "compute_loss_func is set beside a target, but the target is the loss. Remove it and pass "
            "target=LossTarget(fn), or target=Target(trust, residual)."
        )


def warn_overridden_compute_loss(trainer_class: type, own_class: type) -> None:
    """Warn when a subclass replaces compute_loss without calling ours: then no target is trained."""
    compute_loss = trainer_class.compute_loss  # type: ignore[attr-defined]
    if compute_loss is own_class.compute_loss:  # type: ignore[attr-defined]
        return
    code = getattr(inspect.unwrap(compute_loss), "__code__", None)
    calls_ours = code is not None and "compute_loss" in (*code.co_names, *code.co_freevars)
    if not calls_ours:
        logger.warning(
            f"{trainer_class.__name__}.compute_loss replaces TargetSFTTrainer.compute_loss without calling it, so the "
            "target and its teacher are not used. Call super().compute_loss(...), or use TRL's SFTTrainer."
        )


def check_first_example(dataset: Iterable[dict[str, Any]] | None) -> None:
    """Raise ValueError for a data set without examples, or with images."""
    if dataset is None:
        return
    example = next(iter(dataset), None)
    if example is None:
        raise ValueError("the train data set is empty. Pass one with examples, or check the filter that made it.")
    if "image" in example or "images" in example:
        raise ValueError(
            "the data set has images, but documents are identified by their tokens. Use text, or TRL's SFTTrainer."
        )


def check_usable_columns(dataset: Any, args: Any, formatting_func: Any) -> None:
    """Raise ValueError for a data set without columns that TRL can prepare."""
    if not isinstance(dataset, Dataset | IterableDataset):
        return  # TRL raises a TypeError that names its type
    available = dataset.column_names
    skips_preparation = bool((args.dataset_kwargs or {}).get("skip_prepare_dataset"))
    if not available or formatting_func is not None or skips_preparation:
        return
    usable = ("input_ids", args.dataset_text_field, "messages", "conversations", "prompt", "completion")
    if not any(name in available for name in usable):
        raise ValueError(
            f"the data set has the columns {', '.join(available)}, but none that can be trained on: messages, or "
            f"prompt and completion, or {args.dataset_text_field} (dataset_text_field), or input_ids and labels. "
            'Rename the columns, for example dataset.rename_columns({"question": "prompt", "answer": "completion"}), '
            "or pass formatting_func."
        )


def _has_label(dataset: Dataset) -> bool:
    """Whether some document has a label after its first token, which nothing predicts."""
    labels_name = "labels" if "labels" in dataset.column_names else "input_ids"  # of which the collator makes labels
    if labels_name not in dataset.column_names:
        return True  # a collator of the user's tokenizes
    names = [name for name in (labels_name, "seq_lengths") if name in dataset.column_names]
    for example in dataset.select_columns(names).with_format(None):
        labels = example[labels_name]
        start = 0
        for length in example.get("seq_lengths") or [len(labels)]:
            if any(label != IGNORED for label in labels[start + 1 : start + length]):
                return True
            start += length
    return False


def check_labels_left(dataset: Any, given: Any, max_length: int | None) -> None:
    """Raise ValueError when preparation left no example to train on.

    Args:
        dataset: the prepared data set.
        given: the data set that was passed to the trainer.
    """
    if not isinstance(dataset, Dataset) or (len(dataset) and _has_label(dataset)):
        return
    raise ValueError(
        f"none of the {len(given)} examples of the train data set has a label left after truncation to "
        f"max_length={max_length}: all labels after the first token are −100, or the prompts alone fill max_length. "
        "Raise max_length, set truncation_mode='keep_end', or check the labels."
    )


def check_adapter(model: PreTrainedModel | PeftModel, fsdp: bool) -> None:
    """Raise ValueError for adapters whose loss or gradients would be wrong."""
    if not isinstance(model, PeftModel):
        return
    config: Any = model.active_peft_config
    base: Any = model.get_base_model()
    penalty = getattr(config, "orth_reg_weight", 0)
    if penalty:
        raise ValueError(
            f"AdaLoRA adds its penalty (orth_reg_weight={penalty}) to the model's loss, here a sum over tokens: beside "
            "it the penalty would count for next to nothing. Use LoRA, or orth_reg_weight=0 where PEFT takes it."
        )
    if fsdp and hasattr(base.get_output_embeddings(), "modules_to_save"):
        raise ValueError(
            'modules_to_save=["lm_head"] gives wrong gradients under FSDP, also with plain TRL. Remove it, or use DDP '
            "or ZeRO."
        )


def list_datasets(train: Any, evaluation: Any) -> list[Any]:
    """The data sets of a run as a list: evaluation may be one data set, a dict of several, or None."""
    several = list(evaluation.values()) if isinstance(evaluation, dict) else [evaluation]
    return [dataset for dataset in (train, *several) if dataset is not None]


def check_evaluation_name(name: str, evaluation: Any) -> None:
    """Raise ValueError unless `evaluation` is a dict with a data set of that name."""
    if not isinstance(evaluation, dict):
        raise ValueError(
            f"there is no evaluation data set {name!r}: eval_dataset is not a dict. Call evaluate() without a name, or "
            "pass the data set."
        )
    if name not in evaluation:
        raise ValueError(
            f"there is no evaluation data set {name!r}.{did_you_mean(name, evaluation)} eval_dataset has "
            f"{', '.join(evaluation)}."
        )


def is_stream(dataset: Any) -> bool:
    return isinstance(dataset, IterableDataset)


def check_parallelism(parallelism: Any, args: SFTConfig) -> None:
    """Raise ValueError for ways of running that give the head a part of the sequence, or replicas of the model."""
    if args.n_gpu > 1:
        raise ValueError(
            f"{args.n_gpu} GPUs are visible to one process, which Trainer would run as nn.DataParallel; its replicas "
            "do not have the target's head. Start with `accelerate launch` or torchrun, or set CUDA_VISIBLE_DEVICES."
        )
    if parallelism is not None and parallelism.cp_enabled:
        raise ValueError(
            "context parallelism shards the tokens of a batch but not the teacher's log-probs, and drops the mask "
            "between packed documents. Set cp_size=1; use FSDP2 or ZeRO-3 to save memory."
        )
    if parallelism is not None and parallelism.sp_enabled:
        raise ValueError(
            "DeepSpeed Ulysses reduces the model's own loss over the sequence shards, so a target would not be "
            "trained. Set sp_size=1; use FSDP2 or ZeRO-3 to save memory."
        )


def check_documents_cached(cache: TeacherCache, documents: Documents, missing: str) -> None:
    """Raise ValueError when the cache lacks documents; with missing="student" warn how many train without a teacher."""
    absent = cache.missing(documents, check=False)
    if not absent:
        return
    count = f"{len(absent)} of {len(documents)} documents are not in the teacher cache {cache.path}"
    if missing == "student":
        logger.warning(f"{count}; they train with the student's own distribution as the residual (fallback_tokens).")
        return
    first = documents[absent[0]]["input_ids"]
    raise ValueError(
        f"{count} (which has {len(cache)} documents). The first has {len(first)} tokens and starts with "
        f"{first[:12].tolist()}. {WHY_MISSING} `qsft cache build RECIPE` or teacher_model_name_or_path=NAME add what "
        "is missing; teacher_missing='student' trains it without a teacher."
    )


def collator_sees_final_labels(
    model: PreTrainedModel | PeftModel, accelerator: Accelerator, datasets: Iterable[Any]
) -> bool:
    """Whether the labels that the collator returns are those that the head sees, so that it may find them."""
    # PEFT pads the labels of prompt learning.
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return False
    # accelerate may collate in one process for all of them and hand out slices; it slices every tensor of the batch.
    has_stream = any(is_stream(dataset) for dataset in datasets)
    dispatched = has_stream if accelerator.dispatch_batches is None else accelerator.dispatch_batches
    return not dispatched
