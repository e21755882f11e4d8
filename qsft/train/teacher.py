"""The teacher or reference of a run: which one it is, and how the trainer reads it.

`resolve_teacher` turns the trainer's argument and its config into one value before the trainer is built. `open_cache`
and `open_live` then do the work, once the student exists.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import nn
from transformers.integrations import deepspeed as hf_deepspeed
from transformers.utils import logging

from qsft.inference.loading import input_device
from qsft.processes import Group
from qsft.run_directory import BASE
from qsft.targets.target import Target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import MANIFEST, is_cache
from qsft.teacher.identity import Vocabulary, check_head_size
from qsft.teacher.live import LiveTeacher, adapters_disabled
from qsft.teacher.location import default_cache_directory
from qsft.teacher.sources.transformers_source import TransformersSource, weights_digest
from qsft.train.config import DEFAULT_ENCODING, DEFAULT_TOP_K, as_dict
from qsft.train.validate import check_documents_cached

logger = logging.get_logger(__name__)

MODEL_CONFIGS = ("config.json", "adapter_config.json")  # a directory with one of them is a model, not a cache
# LoRA initializations that move a part of the base's weights into the adapter: without it the base is another model.
INITIALIZATIONS_THAT_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")

TRL_DEFAULT_DTYPE = "float32"  # of a student that TRL loads by its name
CACHE_SETTINGS = ("top_k", "cache_encoding", "top_p", "min_k")

Teacher = TeacherCache | str | Path | nn.Module | None


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
        commit = getattr(getattr(student, "config", None), "_commit_hash", None)
        kwargs = {"revision": commit, "dtype": TRL_DEFAULT_DTYPE, **self.init_kwargs}
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
    teacher: Teacher,
    target: Target,
    args: Any,
    student: str | nn.Module,
    peft_config: Any = None,
    quantization_config: Any = None,
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
    | a teacher        | "base" with adapters                     | LiveModel: adapters disabled              |
    | a teacher        | "base" with adapters, FSDP or ZeRO-3     | CachedTeacher, base loaded by name        |
    | a teacher        | "base", `teacher_live`, no adapters      | LiveModel: a frozen copy                  |
    | a teacher        | "base" with PiSSA, OLoRA, CorDA or LoftQ | as above, of the original weights         |
    | a reference      | nothing                                  | as for "base"                             |
    | a reference      | `reference_model_name_or_path`           | as for that model; "teacher": the teacher |
    | a reference      | `teacher=`, or only `teacher_cache`      | that, with a warning                      |
    | `weight_column`  | anything                                 | None                                      |

    Args:
        teacher: the trainer's argument.
        student: the model that the trainer is given, or its name.
        peft_config: the adapter that TRL will add to it, if any.
        quantization_config: how TRL will quantize a student given by its name, if at all.

    Raises:
        ValueError: the target needs a teacher and none was given, or the given one cannot serve.
    """
    has_weight_column = "ref_logp" in target.needs and args.weight_column is not None
    needs_teacher = target.role is not None and not has_weight_column
    if not needs_teacher:
        if teacher is None:
            return None
        if not target.may_read_teacher:
            logger.warning(f"the target {target} does not read a teacher: the given one is not used.")
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
            raise ValueError(_no_teacher_message(target, args))
        return CachedTeacher(directory, None, student_name)
    has_adapters = peft_config is not None or isinstance(student, PeftModel)
    if model == BASE:
        source = _base_source(args, student, has_adapters, peft_config)
        if quantization_config is not None:
            source = replace(source, init_kwargs={**source.init_kwargs, "quantization_config": quantization_config})
        in_memory = has_adapters and not is_sharded(args)
    else:
        source = TeacherModel(model, as_dict(args.teacher_model_init_kwargs))
        in_memory = isinstance(model, nn.Module)
    # A model that is in memory anyway runs live, unless a directory is named to write it to.
    if args.teacher_live or (in_memory and directory is None):
        if source.is_student and not has_adapters:
            # Training changes the student, so its base must be a copy.
            source = replace(source, model=student if isinstance(student, str) else frozen_copy(student))
        return LiveModel(source)
    return CachedTeacher(directory, source, student_name)


def _base_source(args: Any, student: str | nn.Module, has_adapters: bool, peft_config: Any) -> TeacherModel:
    """The student before training: itself, or where that is not possible its checkpoint or a copy."""
    init_kwargs = {"trust_remote_code": args.trust_remote_code, **as_dict(args.model_init_kwargs)}
    base = TeacherModel(None, init_kwargs, is_base=True)
    if is_sharded(args):
        return replace(base, model=_student_checkpoint(student))
    initialization = _initialization_that_changes_the_base(student, peft_config)
    if has_adapters and initialization is not None:
        if isinstance(student, str):
            return replace(base, model=student)
        if isinstance(student, PeftModel):
            raise ValueError(
                f"teacher='base' cannot be read from a model whose adapter was initialized with "
                f"init_lora_weights={initialization!r}: it moves a part of the base's weights into the adapter, so the "
                "base without the adapter is not the original model. Pass the model without its adapter together with "
                "peft_config=..., or name the original model as the teacher."
            )
        return replace(base, model=frozen_copy(student))
    return base


def _initialization_that_changes_the_base(student: str | nn.Module, peft_config: Any) -> str | None:
    config = peft_config
    if config is None and isinstance(student, PeftModel):
        config = student.active_peft_config
    initialization = getattr(config, "init_lora_weights", None)
    if isinstance(initialization, str) and initialization.lower().startswith(INITIALIZATIONS_THAT_CHANGE_THE_BASE):
        return initialization
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


def _given_cache_and_model(teacher: Teacher, role: str | None, args: Any) -> tuple[Path | None, Any]:
    """(cache directory, model) that the trainer's argument and its config name for a target of this role.

    An argument is for whatever the target reads. In a config, a cache beside a teacher model belongs to that teacher,
    so a target that reads a reference does not use it.
    """
    directory = Path(args.teacher_cache) if args.teacher_cache else None
    model: Any = args.teacher_model_name_or_path
    if role == "reference" and teacher is None:
        reference = args.reference_model_name_or_path
        if directory is not None and model is None:
            logger.warning(f"the target anchors to a reference: the cache {directory} is read as the reference.")
            exists = Path(directory, MANIFEST).is_file()
            return directory, None if exists else reference
        return (directory, model) if reference == "teacher" else (None, reference)
    if role == "reference":
        logger.warning(f"the target anchors to a reference: {teacher} is read as the reference.")
    if isinstance(teacher, TeacherCache):
        return teacher.path, model
    if isinstance(teacher, str | Path):
        return (Path(teacher), model) if _is_cache(teacher) else (directory, str(teacher))
    return directory, model if teacher is None else teacher


def _is_cache(teacher: str | Path) -> bool:
    """Whether a path names a cache: it has a manifest, or it is a Path (not a str) that is not a model."""
    if is_cache(teacher):
        return True
    is_model = any(Path(teacher, name).is_file() for name in MODEL_CONFIGS)
    return isinstance(teacher, Path) and not is_model


def _no_teacher_message(target: Target, args: Any) -> str:
    return (
        f"target {args.target!r} ({target!r}) needs a teacher, but no teacher was given. Add one line:\n"
        '    TargetSFTTrainer(..., teacher="Qwen/Qwen2.5-Math-1.5B-Instruct")\n'
        "It may be a model id, a model, a cache directory, or 'base' for the student before training; in a config it "
        "is teacher_model_name_or_path or teacher_cache. Or choose a target without a teacher: target='dft'."
    )


def open_live(live: LiveModel, student: nn.Module, tokenizer: Any, args: Any) -> LiveTeacher:
    """The teacher that runs in every step. Raises ValueError when its tokenizer does not match `tokenizer`."""
    source = live.source
    top_k = args.teacher_top_k or DEFAULT_TOP_K
    if source.is_student:
        if is_sharded(args):
            raise ValueError(
                "teacher='base' cannot run live here: FSDP and ZeRO-3 gather the student's weights only inside its own "
                "forward. Set teacher_cache=DIRECTORY: the base is then captured once, before training."
            )
        return LiveTeacher(student, top_k, base=True)
    if isinstance(source.model, nn.Module):
        check_same_in_every_process(source.model)
    loader = TransformersSource(source.weights(student), device=args.device, model_kwargs=source.load_kwargs(student))
    vocabulary = Vocabulary.of(tokenizer)
    shared_ids = loader.shared_ids(vocabulary)
    model = loader.load().requires_grad_(False)
    return LiveTeacher(model, top_k, shared_ids=shared_ids if shared_ids < vocabulary.size else None)


def open_cache(
    cached: CachedTeacher, documents: Documents, student: Any, tokenizer: Any, args: Any, *, trained: bool = False
) -> TeacherCache:
    """The cache with all documents in it; missing ones are captured first where a model can.

    Args:
        trained: whether the student has been trained: then it can no longer serve as its own base.

    Raises:
        ValueError: the cache does not fit the student or the settings, or lacks documents that cannot be added.
    """
    directory = cache_directory(cached, student, tokenizer, args)
    source = cached.source
    can_add = source is not None and len(documents) > 0 and not (source.is_student and trained)
    if source is not None and can_add:
        cache = _add_missing(directory, source, documents, student, tokenizer, args)
    else:
        cache = TeacherCache(directory)
    cache.check_student(tokenizer, student.config.get_text_config().vocab_size)
    if not can_add:
        cache.manifest.identity.check_same_settings(directory, **requested_settings(cache, args))
        check_documents_cached(cache, documents, args.teacher_missing)
    return cache


def cache_directory(cached: CachedTeacher, student: Any, tokenizer: Any, args: Any) -> Path:
    """The directory as given, or the default location: one directory per teacher, tokenizer and settings.

    Args:
        student: the student, or its name where it is not loaded yet.
    """
    if cached.directory is not None:
        return cached.directory
    assert cached.source is not None, "a teacher without a directory has a model"
    teacher = cached.source.weights(student)
    if cached.source.is_student and cached.student_name is not None:
        teacher = cached.student_name  # its files identify it without reading every weight
    with adapters_disabled(student):
        source = TransformersSource(teacher, model_kwargs=cached.source.load_kwargs(student))
        return default_cache_directory(source, tokenizer, **capture_settings(args))


def expected_cache_directory(target: Target, args: Any, student: str, tokenizer: Any) -> Path | None:
    """Where the cache of the target's teacher (or reference) will be, before any model is loaded; None without one."""
    directory, model = _given_cache_and_model(None, target.role, args)
    if directory is None and model is None:
        return None
    source = None
    if model == BASE:
        source = _base_source(args, student, has_adapters=False, peft_config=None)
    elif model is not None:
        source = TeacherModel(model, as_dict(args.teacher_model_init_kwargs))
    return cache_directory(CachedTeacher(directory, source, student), student, tokenizer, args)


def _add_missing(
    directory: Path, source: TeacherModel, documents: Documents, student: Any, tokenizer: Any, args: Any
) -> TeacherCache:
    """Capture the documents that the cache lacks, by a teacher that is freed afterwards."""
    if args.packing and args.packing_strategy == "wrapped":
        logger.warning(
            "packing_strategy='wrapped' cuts documents at the end of each example, so this cache is valid for one seed "
            "and one max_length only. packing_strategy='bfd' makes caches that can be reused."
        )
    # A student that does not fit must not cost a capture.
    check_head_size(student.config.get_text_config().vocab_size, tokenizer.vocab_size, "the student")
    if isinstance(source.model, nn.Module):
        check_same_in_every_process(source.model)
    settings = capture_settings(args)
    if Path(directory, MANIFEST).is_file():
        # An existing cache keeps its settings; those that were requested must agree with them.
        existing = TeacherCache(directory)
        settings = {name: getattr(existing.manifest.identity, name) for name in CACHE_SETTINGS}
        settings |= requested_settings(existing, args)
    with _ready_for_capture(source, student):
        cache = build_cache(
            documents,
            source.weights(student),
            directory,
            tokenizer=tokenizer,
            device=args.device,
            batch_tokens=args.teacher_batch_tokens,
            model_kwargs=source.load_kwargs(student),
            progress=not args.disable_tqdm,
            **settings,
        )
        if source.is_base and args.process_index == 0:
            _warn_if_base_differs(student, cache)
    return cache


def _ready_for_capture(source: TeacherModel, student: Any) -> AbstractContextManager[Any]:
    """The state that the teacher's model must be in while a capture runs it."""
    if source.is_student:
        return adapters_disabled(student)
    if isinstance(source.model, nn.Module):
        return moved_back_afterwards(source.model)
    return nullcontext()


def streams_have_teacher(resolved: CachedTeacher | LiveModel | None) -> bool:
    """Whether streamed data can be trained on: their documents are not known before the first step.

    A live teacher computes them as they come. A cache must have them already: one without a model that would add them,
    or an existing one that the user named.
    """
    if not isinstance(resolved, CachedTeacher) or resolved.source is None:
        return True
    return resolved.directory is not None and Path(resolved.directory, MANIFEST).is_file()


def teacher_identity(
    resolved: CachedTeacher | LiveModel | None, cache: TeacherCache | None, live: LiveTeacher | None
) -> dict[str, Any] | None:
    """The teacher as a run records it: what must be equal for a checkpoint to be continued."""
    if resolved is None:
        return None
    if cache is not None:
        return asdict(cache.manifest.identity)
    assert isinstance(resolved, LiveModel)
    source = resolved.source
    if source.is_student:
        return {"live": BASE, "weights": None}
    if isinstance(source.model, str):
        return {"live": source.model, "weights": None}
    return {"live": type(source.model).__name__, "weights": weights_digest(source.model)}  # type: ignore[arg-type]


def capture_settings(args: Any) -> dict[str, Any]:
    """The settings of a new cache."""
    return {
        "top_k": args.teacher_top_k or DEFAULT_TOP_K,
        "cache_encoding": args.teacher_cache_encoding or DEFAULT_ENCODING,
        "top_p": args.teacher_top_p,
    }


def requested_settings(cache: TeacherCache, args: Any) -> dict[str, Any]:
    """The settings that the user gave, which an existing cache must have; a cache has at most the vocabulary."""
    requested: dict[str, Any] = {}
    if args.teacher_top_k is not None:
        requested["top_k"] = min(args.teacher_top_k, cache.vocab_size)
    if args.teacher_cache_encoding is not None:
        requested["cache_encoding"] = args.teacher_cache_encoding
    if args.teacher_top_p is not None:
        requested["top_p"] = args.teacher_top_p
    return requested


def is_sharded(args: Any) -> bool:
    """Whether no process holds the student's complete weights: FSDP (also from accelerate's config) or ZeRO-3."""
    fsdp = bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return fsdp or hf_deepspeed.is_deepspeed_zero3_enabled()


@contextmanager
def moved_back_afterwards(teacher: nn.Module) -> Iterator[None]:
    """Move a teacher in memory back to its device on exit: training needs the accelerator's memory."""
    home = input_device(teacher)
    try:
        yield
    finally:
        if input_device(teacher) != home:
            teacher.to(home)


def check_same_in_every_process(model: nn.Module) -> None:
    """Raise ValueError when a teacher in memory is incomplete in some process.

    FSDP's RAM-efficient loading may leave empty weights in all but the first process of a machine, ZeRO-3 a part in
    each. Both are completed when the model is wrapped, and a teacher is not wrapped.
    """
    digests = set(Group().gather([weights_digest(model)]))
    is_partitioned = any(hasattr(parameter, "ds_id") for parameter in model.parameters())
    if len(digests) > 1 or is_partitioned:
        raise ValueError(
            f"the teacher {type(model).__name__} in memory is not the same model in every process: FSDP or ZeRO-3 gave "
            "most of them only a part of it. Pass its name or path, which qsft loads completely, or a cache of "
            "`qsft cache build`; for teacher='base' pass the student by its name or path."
        )


def _warn_if_base_differs(student: nn.Module, cache: TeacherCache) -> None:
    """Warn when the base that was captured does not have the student's weights: resized, merged or edited in memory."""
    is_partial = any(
        hasattr(parameter, "ds_id") or hasattr(parameter, "full_tensor") for parameter in student.parameters()
    )
    if is_partial:
        return
    captured = cache.manifest.identity.teacher
    with adapters_disabled(student):
        same = weights_digest(student) == captured["weights"]
    if not same:
        logger.warning(
            f"teacher='base' was loaded from {captured['name']}, but the student has other weights, changed or cast "
            "after loading. If they are intended, save the student, pass that path, and give a new teacher_cache."
        )


def frozen_copy(student: nn.Module) -> nn.Module:
    """A copy of the student as it is now, in evaluation mode and without gradients."""
    copied = deepcopy(student)
    # A forward that an earlier trainer patched in is bound to the original's weights.
    vars(copied).pop("forward", None)
    return copied.eval().requires_grad_(False)
