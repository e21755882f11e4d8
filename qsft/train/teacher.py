"""The teacher or reference of a run: `resolve_teacher` turns the trainer's argument and its config into one value.

It decides before the trainer is built and loads nothing; open_teacher.py opens what it returns.
"""

import os
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import nn
from transformers.integrations import deepspeed as hf_deepspeed
from transformers.utils import logging

from qsft.run_directory import BASE
from qsft.targets.table import formula
from qsft.targets.target import Target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.format.manifest import is_cache
from qsft.train.config import as_dict

logger = logging.get_logger(__name__)

MODEL_CONFIGS = ("config.json", "adapter_config.json")  # a directory with one of them is a model, not a cache
# LoRA initializations that change the base's weights: without the adapter, it is not the original model.
INITIALIZATIONS_THAT_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
TRL_DEFAULT_DTYPE = "float32"  # of a student that TRL loads by its name

TeacherArgument = TeacherCache | str | Path | nn.Module | None


class MissingTeacherError(ValueError):
    """The target needs a teacher, and none was given."""


@dataclass(frozen=True)
class TeacherModel:
    """A model whose distributions the target reads.

    Args:
        model: a model id or path, a model in memory, or None for the trainer's own student before training (with its
            adapters disabled).
        init_kwargs: how from_pretrained loads it.
        is_base: whether it stands for the student before training; it is then loaded in the student's dtype.
    """

    model: str | nn.Module | None
    init_kwargs: dict[str, Any]
    is_base: bool = False

    def __str__(self) -> str:
        if self.model is None:
            return "the student"
        return self.model if isinstance(self.model, str) else type(self.model).__name__

    @property
    def is_student(self) -> bool:
        """Whether it is the trainer's own student, which must be read before it is trained."""
        return self.model is None

    def weights(self, student: Any) -> Any:
        """What a source loads or runs: a name, or a model in memory."""
        return student if self.model is None else self.model

    def load_kwargs(self, student: Any) -> dict[str, Any]:
        """Keyword arguments of from_pretrained; the base is loaded as the student was."""
        if not self.is_base:
            return dict(self.init_kwargs)
        kwargs = {"dtype": TRL_DEFAULT_DTYPE, **self.init_kwargs}
        if isinstance(student, nn.Module):
            kwargs["dtype"] = student.dtype
        return kwargs


@dataclass(frozen=True)
class CachedTeacher:
    """A teacher that is read from a cache.

    Args:
        directory: the cache; None for the default location, one directory per identity.
        source: the model that adds missing documents before the first step; None when the cache must be complete.
        student_name: the name that the student was loaded from, if any.
    """

    directory: Path | None
    source: TeacherModel | None
    student_name: str | None = None


@dataclass(frozen=True)
class LiveModel:
    """A teacher that runs in every step."""

    source: TeacherModel


def resolve_teacher(
    teacher: TeacherArgument,
    target: Target,
    args: Any,
    student: str | nn.Module,
    peft_config: Any = None,
    quantization_config: Any = None,
    *,
    target_name: str | None = None,
) -> CachedTeacher | LiveModel | None:
    """Decide which distribution the target reads beside the student's, from the trainer's argument and its config.

    Call it before TRL wraps the student: a copy made later would still run the student's forward.

    | the target reads | given                                    | result                                    |
    |------------------|------------------------------------------|-------------------------------------------|
    | no teacher       | nothing, or a teacher (warned, unused)   | None                                      |
    | a teacher        | nothing                                  | ValueError                                |
    | a teacher        | a cache (`teacher=` or `teacher_cache`)  | CachedTeacher that must be complete       |
    | a teacher        | a cache and a model                      | CachedTeacher completed by the model      |
    | a teacher        | a model id or path                       | CachedTeacher at the default location     |
    | a teacher        | a model id or path, `teacher_live`       | LiveModel                                 |
    | a teacher        | a model in memory                        | LiveModel                                 |
    | a teacher        | a model in memory and `teacher_cache`    | CachedTeacher completed by the model      |
    | a teacher        | "base"                                   | CachedTeacher of the student              |
    | a teacher        | "base", `teacher_live`                   | LiveModel: a copy of the student          |
    | a teacher        | "base" with adapters                     | LiveModel: the student without them       |
    | a teacher        | "base" with adapters and `teacher_cache` | CachedTeacher of the student without them |
    | a teacher        | "base" with an adapter that changes it   | as with adapters, of the original weights |
    | a teacher        | "base" under FSDP or ZeRO-3              | as for the student's model id or path     |
    | a reference      | nothing                                  | as for "base"                             |
    | a reference      | `reference_model_name_or_path`           | as for that model; "teacher": the teacher |
    | a reference      | `teacher=`, or only `teacher_cache`      | that, with a warning                      |
    | `weight_column`  | anything                                 | None                                      |

    Args:
        teacher: the trainer's argument.
        student: the model that the trainer is given, or its name.
        peft_config: the adapter that TRL will add to it, if any.
        quantization_config: how TRL will quantize a student given by its name, if at all.
        target_name: the target's name in the registry, for messages; None for the user's own target.

    Raises:
        MissingTeacherError: the target needs a teacher and none was given.
        ValueError: the given teacher cannot serve.
    """
    if not isinstance(teacher, TeacherArgument):
        raise TypeError(
            f"teacher must be a TeacherCache, a cache's directory, a model id or path, a model, or 'base', got "
            f"{type(teacher).__name__}."
        )
    has_weight_column = "ref_logp" in target.needs and args.weight_column is not None
    needs_teacher = target.role is not None and not has_weight_column
    if not needs_teacher:
        if teacher is None:
            return None
        if not target.may_read_teacher:
            logger.warning(f"{_describe(target, target_name)} does not read a teacher: the given one is not used.")
            return None
    if "ref_logp" in target.needs and args.teacher_missing == "student":
        raise ValueError(
            "teacher_missing='student' leaves iw_sft without weights for the missing documents. Complete the cache, or "
            "use weight_column."
        )
    directory, model = _given_cache_and_model(teacher, target.role, args)
    student_name = student if isinstance(student, str) else None
    if model is None:
        if directory is None:
            raise MissingTeacherError(_no_teacher_message(target, target_name))
        return CachedTeacher(directory, None, student_name)
    has_adapters = peft_config is not None or isinstance(student, PeftModel)
    if model == BASE:
        source = _base_source(args, student, peft_config, quantization_config)
        in_memory = has_adapters and not is_sharded(args)
    else:
        source = TeacherModel(model, as_dict(args.teacher_model_init_kwargs))
        in_memory = isinstance(model, nn.Module)
    # A model that is in memory anyway runs live, unless the user named a cache to write it to.
    if args.teacher_live or (in_memory and directory is None):
        if source.is_student and not has_adapters:
            # Training changes the student, so its base must be a copy.
            source = replace(source, model=student if isinstance(student, str) else frozen_copy(student))
        return LiveModel(source)
    return CachedTeacher(directory, source, student_name)


def _base_source(args: Any, student: str | nn.Module, peft_config: Any, quantization_config: Any) -> TeacherModel:
    """The student before training: itself, or where that is not possible its checkpoint or a copy."""
    init_kwargs = {"trust_remote_code": args.trust_remote_code, **as_dict(args.model_init_kwargs)}
    if quantization_config is not None:
        init_kwargs["quantization_config"] = quantization_config
    base = TeacherModel(None, init_kwargs, is_base=True)
    if is_sharded(args):
        return replace(base, model=_student_checkpoint(student))
    configs = list(student.peft_config.values()) if isinstance(student, PeftModel) else [peft_config]
    settings = [_setting_that_changes_the_base(config) for config in configs]
    changes = [setting for setting in settings if setting is not None]
    if not changes:
        return base
    if isinstance(student, str):
        return replace(base, model=student)
    if isinstance(student, PeftModel):
        raise ValueError(
            f"teacher='base' cannot be read from a model whose adapter was initialized with {changes[0]}: this changes "
            "the base's weights, so the base without the adapter is not the original model. Pass the model without its "
            "adapter together with peft_config=..., or name the original model as the teacher."
        )
    return replace(base, model=frozen_copy(student))


def _setting_that_changes_the_base(config: Any) -> str | None:
    """The setting of an adapter's configuration that changes the base's weights, as text; None where none does."""
    initialization = getattr(config, "init_lora_weights", None)
    if isinstance(initialization, str) and initialization.lower().startswith(INITIALIZATIONS_THAT_CHANGE_THE_BASE):
        return f"init_lora_weights={initialization!r}"
    if getattr(config, "kasa_config", None) is not None:
        return "kasa_config"
    return None


def _student_checkpoint(student: str | nn.Module) -> str:
    """The name to load a sharded student's initial weights from again."""
    name = student if isinstance(student, str) else student.config._name_or_path  # type: ignore[union-attr]
    if not name:
        raise ValueError(
            "teacher='base' must load the student's initial weights again (FSDP or ZeRO-3 shard them), but the model "
            "was not loaded from a directory or hub id. Save it first and pass its path as the model."
        )
    return str(name)


def _given_cache_and_model(teacher: TeacherArgument, role: str | None, args: Any) -> tuple[Path | None, Any]:
    """The cache's directory and the model that the user named for a target of this role; None where none was named."""
    if teacher is not None:
        return _given_by_argument(teacher, role, args)
    if role == "reference":
        return _given_as_reference(args)
    return _cache_of_config(args), args.teacher_model_name_or_path


def _given_by_argument(teacher: Any, role: str | None, args: Any) -> tuple[Path | None, Any]:
    """The trainer's argument is for whatever the target reads; the config adds the other of cache and model."""
    if role == "reference":
        logger.warning(f"the target anchors to a reference: {teacher} is read as the reference.")
    if isinstance(teacher, TeacherCache):
        return teacher.path, args.teacher_model_name_or_path
    if not isinstance(teacher, str | Path):
        return _cache_of_config(args), teacher
    if _is_cache(teacher):
        return Path(teacher), args.teacher_model_name_or_path
    return _cache_of_config(args), str(teacher)


def _given_as_reference(args: Any) -> tuple[Path | None, Any]:
    """What the config names for a reference. A cache beside a teacher model is that teacher's, so it is not read."""
    directory = _cache_of_config(args)
    reference = args.reference_model_name_or_path
    if directory is not None and args.teacher_model_name_or_path is None:
        logger.warning(f"the target anchors to a reference: the cache {directory} is read as the reference.")
        if is_cache(directory):
            return directory, None
        return directory, reference
    if reference == "teacher":
        return directory, args.teacher_model_name_or_path
    return None, reference


def _cache_of_config(args: Any) -> Path | None:
    return Path(args.teacher_cache) if args.teacher_cache else None


def _is_cache(teacher: str | Path) -> bool:
    """Whether a path names a cache: it has a manifest, or it is a Path (not a str) that is not a model."""
    if is_cache(teacher):
        return True
    is_model = any(Path(teacher, name).is_file() for name in MODEL_CONFIGS)
    return isinstance(teacher, Path) and not is_model


def _describe(target: Target, name: str | None) -> str:
    return f"the target ({formula(target)})" if name is None else f"the target {name} ({formula(target)})"


def _no_teacher_message(target: Target, name: str | None) -> str:
    return (
        f"{_describe(target, name)} needs a teacher, but no teacher was given. Add one line:\n"
        '    TargetSFTTrainer(..., teacher="Qwen/Qwen2.5-Math-1.5B-Instruct")\n'
        "It may be a model id, a model, a cache directory, or 'base' for the student before training; in a config it "
        "is teacher_model_name_or_path or teacher_cache. Or choose a target without a teacher: target='dft'."
    )


def streams_have_teacher(resolved: CachedTeacher | LiveModel | None) -> bool:
    """Whether streamed data can be trained on: their documents are not known before the first step.

    A live teacher computes them as they come. A cache must have them already: one without a model that would add them,
    or an existing one that the user named.
    """
    if not isinstance(resolved, CachedTeacher) or resolved.source is None:
        return True
    return resolved.directory is not None and is_cache(resolved.directory)


def is_sharded(args: Any) -> bool:
    """Whether no process holds the student's complete weights: FSDP (also from accelerate's config) or ZeRO-3."""
    fsdp = bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return fsdp or hf_deepspeed.is_deepspeed_zero3_enabled()


def frozen_copy(student: nn.Module) -> nn.Module:
    """A copy of the student as it is now, in evaluation mode and without gradients."""
    copied = deepcopy(student)
    # A forward that an earlier trainer patched in is bound to the original's weights.
    vars(copied).pop("forward", None)
    return copied.eval().requires_grad_(False)
