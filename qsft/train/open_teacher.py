"""Open what `resolve_teacher` decided on: complete the cache of a run, or load the teacher that runs in every step."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn
from transformers.utils import logging

from qsft.fingerprints import is_partial
from qsft.inference.loading import input_device
from qsft.processes import Group
from qsft.run_directory import BASE
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import is_cache
from qsft.teacher.live import LiveTeacher, adapters_disabled
from qsft.teacher.location import default_cache_directory
from qsft.teacher.sources.open_source import open_source
from qsft.teacher.sources.transformers_source import TransformersSource, weights_digest
from qsft.teacher.vocabulary import Vocabulary, check_head_size
from qsft.train.config import DEFAULT_ENCODING, DEFAULT_TOP_K
from qsft.train.teacher import CachedTeacher, LiveModel, TeacherModel
from qsft.train.validate import check_documents_cached

logger = logging.get_logger(__name__)

CACHE_SETTINGS = ("top_k", "cache_encoding", "top_p", "min_k")


def open_live(live: LiveModel, student: nn.Module, tokenizer: Any, args: Any) -> LiveTeacher:
    """The teacher that runs in every step. Raises ValueError when its tokenizer does not match `tokenizer`."""
    source = live.source
    top_k = args.teacher_top_k or DEFAULT_TOP_K
    if source.is_student:
        return LiveTeacher(student, top_k, is_student=True)
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
        source = open_source(teacher, model_kwargs=cached.source.load_kwargs(student))
        return default_cache_directory(source, tokenizer, **capture_settings(args))


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
    if is_cache(directory):
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


def teacher_identity(resolved: CachedTeacher | LiveModel | None, cache: TeacherCache | None) -> dict[str, Any] | None:
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
    if any(map(is_partial, student.parameters())):
        return
    captured = cache.manifest.identity.teacher
    with adapters_disabled(student):
        same = weights_digest(student) == captured["weights"]
    if not same:
        logger.warning(
            f"teacher='base' was loaded from {captured['name']}, but the student has other weights, changed or cast "
            "after loading. If they are intended, save the student, pass that path, and give a new teacher_cache."
        )
