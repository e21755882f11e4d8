"""The teacher or reference of a run: a cache, a model written to one before the first step, or one that runs live."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn
from transformers.integrations import deepspeed as hf_deepspeed
from transformers.utils import logging

from qsft.inference.loading import input_device
from qsft.processes import Group
from qsft.targets.target import Target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import MANIFEST
from qsft.teacher.identity import Vocabulary, check_head_size
from qsft.teacher.live import LiveTeacher, adapters_disabled
from qsft.teacher.location import default_cache_directory
from qsft.teacher.sources.transformers_source import TransformersSource, weights_digest
from qsft.train.config import BASE, TargetSFTConfig, as_dict
from qsft.train.safeguards import refuse_missing, refuse_missing_teacher

logger = logging.get_logger(__name__)

CONFIG = "config.json"  # a directory that holds one is a model
Teacher = TeacherCache | str | Path | nn.Module | None


@dataclass(frozen=True)
class RunTeacher:
    """The distribution from outside that the target reads, as its teacher or its reference.

    path    the cache's directory; None for a live teacher, and for the default place, one folder per identity
    model   a model id, a model, or "base": the student itself before training; None when the cache must be complete
    live    whether it runs in every step
    """

    path: Path | None
    model: Any
    args: TargetSFTConfig
    live: bool = False
    student: str | None = None  # the name that the student was loaded from, where one was given

    @classmethod
    def of(
        cls, given: Teacher, target: Target, args: TargetSFTConfig, student: str | nn.Module, adapters: bool
    ) -> "RunTeacher | None":
        """What the trainer's argument and its config name; None for a target that reads no teacher.

        Called before TRL patches the student's forward: a copy made later would still run the student's weights.
        """
        needed = target.role is not None and ("ref_logp" not in target.needs or args.weight_column is None)
        if not needed and given is not None and not target.may_read_teacher:
            logger.warning(f"the target {target} reads no teacher: the one given is not used.")
        if not needed and (given is None or not target.may_read_teacher):
            return None
        if "ref_logp" in target.needs and args.teacher_missing == "self":
            raise ValueError("teacher_missing='self' leaves iw_sft no weight: complete the cache or use weight_column.")
        path, model = named_teacher(given, target.role, args)
        name = student if isinstance(student, str) else None
        if model is None:
            return cls(path or refuse_missing_teacher(target, args), None, args, student=name)
        # What is in memory already runs live, unless a directory is named to write it to.
        in_memory = isinstance(model, nn.Module) or (model == BASE and adapters and not is_sharded(args))
        if not (args.teacher_live or (in_memory and path is None)):
            return cls(path, model, args, student=name)
        copied = model == BASE and not adapters
        return cls(None, frozen_copy(student, args) if copied else model, args, live=True, student=name)

    def run_live(self, student: nn.Module, tokenizer: Any) -> LiveTeacher:
        """The live teacher, which must speak the tokens of `tokenizer`; "base" is the student with its adapters off."""
        model, args = student if self.model == BASE else self.model, self.args
        if model is student and is_sharded(args):
            raise ValueError(
                "teacher='base' cannot run live here: FSDP and ZeRO-3 gather the student's weights only inside its own "
                "forward. Set teacher_cache=DIRECTORY: the base is then captured once, before training."
            )
        if model is not student:
            if isinstance(model, nn.Module):
                refuse_partial_copies(model)
            source = TransformersSource(model, device=args.device, model_kwargs=as_dict(args.teacher_model_init_kwargs))
            source.check_same_tokenizer(Vocabulary.of(tokenizer))
            model = source.load().requires_grad_(False)
        return LiveTeacher(model, args.teacher_top_k, base=model is student)

    def complete(self, documents: Documents, tokenizer: Any, student: Any, *, trained: bool = False) -> TeacherCache:
        """The cache with all documents in it; once the student is `trained`, it is no longer the base to fill it."""
        path = self.directory(tokenizer, student)
        only_read = self.model is None or not len(documents) or (self.model == BASE and trained)
        cache = TeacherCache(path) if only_read else self.fill(path, documents, tokenizer, student)
        cache.check_student(tokenizer, student.config.get_text_config().vocab_size)
        if only_read:
            cache.manifest.identity.check_same_settings(path, **asked_of(cache, self.args))
            refuse_missing(cache, documents, self.args.teacher_missing)
        return cache

    def directory(self, tokenizer: Any, student: Any) -> Path:
        """As named, else a folder per identity and settings; a base is known by its files where `student` is a name."""
        if self.path is not None:
            return self.path
        teacher = (self.student or base_weights(student, self.args)) if self.model == BASE else self.model
        with adapters_disabled(student):
            source = TransformersSource(teacher, model_kwargs=self.load_kwargs(student))
            return default_cache_directory(source, tokenizer, **capture_settings(self.args))

    def load_kwargs(self, student: Any) -> dict[str, Any]:
        """How from_pretrained loads the model: a base as the student was loaded."""
        if self.model != BASE:
            return as_dict(self.args.teacher_model_init_kwargs)
        commit = getattr(getattr(student, "config", None), "_commit_hash", None)
        return {"revision": commit, **as_dict(self.args.model_init_kwargs)}

    def fill(self, path: Path, documents: Documents, tokenizer: Any, student: Any) -> TeacherCache:
        """The cache with the documents in it: those it lacks are computed first, by a teacher that is then let go."""
        args = self.args
        if args.packing and args.packing_strategy == "wrapped":
            logger.warning(
                "packing_strategy='wrapped' cuts documents where rows end, so this cache holds for one seed and one "
                "max_length only. packing_strategy='bfd' makes caches that last."
            )
        # The head is checked here too: a student that does not fit must not cost a capture.
        check_head_size(student.config.get_text_config().vocab_size, tokenizer.vocab_size, "the student")
        if isinstance(self.model, nn.Module):
            refuse_partial_copies(self.model)
        base, settings = self.model == BASE, capture_settings(args)
        if Path(path, MANIFEST).is_file():  # it knows its settings, which nobody has to repeat; others must agree
            held = TeacherCache(path)
            settings = {name: getattr(held.manifest.identity, name) for name in (*settings, "min_k")}
            settings |= asked_of(held, args)
        settings |= {"model_kwargs": self.load_kwargs(student), "batch_tokens": args.teacher_batch_tokens}
        settings |= {"tokenizer": tokenizer, "device": args.device, "progress": not args.disable_tqdm}
        with adapters_disabled(student) if base else put_back(self.model):
            cache = build_cache(documents, base_weights(student, args) if base else self.model, path, **settings)
            if base and args.process_index == 0:
                warn_if_changed(student, cache)
        return cache

    def identity(self, cache: TeacherCache | None) -> dict[str, Any]:
        """What must be the same for a checkpoint to be continued."""
        if cache is not None:
            return asdict(cache.manifest.identity)
        name = self.model if isinstance(self.model, str) else type(self.model).__name__
        weights = None if isinstance(self.model, str) else weights_digest(self.model)
        return {"live": name, "weights": weights}


def named_teacher(given: Teacher, role: str | None, args: TargetSFTConfig) -> tuple[Path | None, Any]:
    """(cache, model) that the trainer's argument and its config name for a target of this role; None where unnamed.

    An argument is for whatever the target reads. In a config a cache beside a teacher model is that teacher's, so an
    anchor row leaves it alone.
    """
    path = Path(args.teacher_cache) if args.teacher_cache else None
    model: Any = args.teacher_model_name_or_path
    if role == "reference":
        alone = path if given is None and model is None else None
        if given is not None or alone is not None:
            logger.warning(f"the target anchors to a reference: {alone or given} is taken as it.")
        if alone is not None:
            return alone, None if Path(alone, MANIFEST).is_file() else args.reference_model_name_or_path
        if given is None:
            wanted = args.reference_model_name_or_path
            return (path, model) if wanted == "teacher" else (None, wanted)
    given = given.path if isinstance(given, TeacherCache) else given
    if isinstance(given, str | Path):
        is_cache = Path(given, MANIFEST).is_file() or (isinstance(given, Path) and not Path(given, CONFIG).is_file())
        return (Path(given), model) if is_cache else (path, str(given))
    return path, model if given is None else given


def cache_directory(target: Target, args: TargetSFTConfig, student: str, tokenizer: Any) -> Path | None:
    """Where the cache of what the target reads (or else the teacher's) will be, before any model is loaded."""
    path, model = named_teacher(None, target.role, args)
    if path is None and model is None:
        return None
    return RunTeacher(path, model, args, student=student).directory(tokenizer, student)


def capture_settings(args: TargetSFTConfig) -> dict[str, Any]:
    return {"top_k": args.teacher_top_k, "cache_encoding": args.teacher_cache_encoding, "top_p": args.teacher_top_p}


def asked_of(cache: TeacherCache, args: TargetSFTConfig) -> dict[str, Any]:
    """Those of them that were asked for, not left to their defaults; no cache holds more than the vocabulary."""
    asked = capture_settings(args) | {"top_k": min(args.teacher_top_k, cache.vocab_size)}
    return {name: value for name, value in asked.items() if name in args.given_for_capture}


def is_sharded(args: TargetSFTConfig) -> bool:
    """Whether no process holds the student's weights whole: FSDP (also from accelerate's config) or ZeRO-3."""
    fsdp = bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return fsdp or hf_deepspeed.is_deepspeed_zero3_enabled()


@contextmanager
def put_back(teacher: Any) -> Iterator[None]:
    """A teacher in memory that is moved inside goes home afterwards: training needs the accelerator's memory."""
    home = input_device(teacher) if isinstance(teacher, nn.Module) else None
    try:
        yield
    finally:
        if home is not None and input_device(teacher) != home:
            teacher.to(home)


def refuse_partial_copies(model: nn.Module) -> None:
    """FSDP's RAM-efficient loading leaves zeros in all but the first process of a machine, ZeRO-3 a part in each. Both
    are made good when the model is wrapped, and a teacher never is. What qsft loads itself is whole.
    """
    digests = set(Group().gather([weights_digest(model)]))
    if len(digests) > 1 or any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        raise ValueError(
            f"the teacher {type(model).__name__} in memory is not the same model in every process: FSDP or ZeRO-3 "
            "give most of them zeros or a part of it. Pass its name or path, which qsft loads whole, or a "
            "cache of `qsft cache build`; for teacher='base' pass the student by its name or path."
        )


def base_weights(student: Any, args: TargetSFTConfig) -> Any:
    """The student before training: itself (with its adapters off), or where it is sharded the name to load it from."""
    if not is_sharded(args):
        return student
    name = student.config._name_or_path
    if not name:
        raise ValueError(
            "teacher='base' must load the student's first weights again (they are sharded), but the model came from no "
            "directory or hub id. Save it first and pass its path as the model."
        )
    return name


def warn_if_changed(student: nn.Module, cache: TeacherCache) -> None:
    """Say so when the base that was loaded again is not the student: resized, merged or edited in memory."""
    # Weights of which this process has only a part (ZeRO-3, FSDP2) cannot be compared.
    partly = any(hasattr(parameter, part) for parameter in student.parameters() for part in ("ds_id", "full_tensor"))
    if not partly and weights_digest(student) != cache.manifest.identity.teacher["weights"]:
        logger.warning(
            f"teacher='base' is from {cache.manifest.identity.teacher['name']}, but the student has other weights, "
            "changed or cast after loading. If they are meant, save it, pass that path, and give a new teacher_cache."
        )


def frozen_copy(student: str | nn.Module, args: TargetSFTConfig) -> nn.Module:
    """The student as it is now, in eval mode and without gradients; later training does not move it."""
    if isinstance(student, str):
        copy = TransformersSource(student, device="cpu", model_kwargs=as_dict(args.model_init_kwargs)).load()
    else:
        copy = deepcopy(student)
        # A forward that an earlier trainer patched in is bound to the original's weights.
        vars(copy).pop("forward", None)
    return copy.eval().requires_grad_(False)
