"""What `qsft explore tokens` and `qsft explore alignment` look at: student, tokenizer, documents, target, teacher."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from qsft.data.load import TrainingData
from qsft.inference.loading import default_device, load_model, load_tokenizer
from qsft.recipe.job import Job, configure, on_this_device
from qsft.recipe.job_data import load_data, load_student_tokenizer, stored_rows
from qsft.recipe.prepare import (
    PreparedJob,
    apply_curation,
    make_models,
    resolve_job_teacher,
    teacher_cache_path,
)
from qsft.recipe.recipe_file import Recipe
from qsft.targets.registry import DEFAULT_TARGET, make_target
from qsft.targets.target import Target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import is_cache
from qsft.train.teacher import CachedTeacher
from qsft.train.trainer import TargetSFTTrainer


@dataclass(frozen=True)
class ExploreInputs:
    """A student and the documents it is shown on.

    Args:
        model: the student.
        tokenizer: its tokenizer.
        documents: documents with input_ids and labels, in random order.
        target: the target.
        teacher: the cache or the live teacher that the target reads.
    """

    model: Any
    tokenizer: Any
    documents: Sequence[Any]
    target: Target
    teacher: Any


def inputs_of_recipe(recipe: Recipe, num_documents: int, seed: int) -> ExploreInputs:
    """Return a random draw of a recipe's documents, prepared by the trainer as for training.

    An existing cache is read, and not added to. Where there is none, or where it has too few of the drawn documents,
    their log-probs go into a cache beside it, which the next draw adds to.
    """
    job = make_models(configure(on_this_device(recipe)))
    tokenizer = load_student_tokenizer(job)
    job = apply_curation(job, tokenizer)
    data = _draw_examples(job, tokenizer, num_documents, seed)
    path = teacher_cache_path(job, tokenizer)
    if path is None:
        return _read_draw(PreparedJob(job, tokenizer, data).trainer(), tokenizer)
    if is_cache(path):
        trainer = PreparedJob(_reading_only(job, path), tokenizer, data).trainer()
        inputs = _read_draw(trainer, tokenizer)
        drawn = len(Documents(trainer.train_dataset))
        resolved = resolve_job_teacher(job)
        can_add = isinstance(resolved, CachedTeacher) and resolved.source is not None
        if len(inputs.documents) >= min(num_documents, drawn) or not can_add:
            return inputs
    return _read_draw(PreparedJob(_with_sample_cache(job, path), tokenizer, data).trainer(), tokenizer)


def inputs_of_cache(recipe: Recipe, cache_directory: Path) -> ExploreInputs:
    """Return the documents that a cache keeps with their tokens; the recipe names the student and the target."""
    model = str(recipe.values["model_name_or_path"])
    cache = TeacherCache(cache_directory)
    target = make_target(recipe.values.get("target", DEFAULT_TARGET), **recipe.values.get("target_kwargs") or {})
    tokenizer = load_tokenizer(model)
    student: Any = load_model(model)
    cache.check_student(tokenizer, student.config.get_text_config().vocab_size)
    documents = [{"input_ids": ids, "labels": labels} for ids, labels in cache.samples()]
    return ExploreInputs(student.to(default_device()), tokenizer, documents, target, cache)


def _read_draw(trainer: TargetSFTTrainer, tokenizer: Any) -> ExploreInputs:
    """Return the trainer's documents; with a cache, those that are in it."""
    documents: Sequence[Any] = Documents(trainer.train_dataset)
    if trainer.cache is not None:
        documents = [document for document in documents if document in trainer.cache]
    teacher = trainer.cache or trainer.live_teacher
    return ExploreInputs(trainer.model, tokenizer, documents, trainer.target, teacher)


def _draw_examples(job: Job, tokenizer: Any, num_documents: int, seed: int) -> TrainingData:
    """Return a random draw of the job's examples: a few more than requested, because some may have no label."""
    count = num_documents + num_documents // 4 + 8

    def draw(rows: Dataset) -> Dataset:
        return rows.shuffle(seed=seed).select(range(min(len(rows), count)))

    settings = job.settings
    if settings.sample_rows is None:
        return load_data(job, tokenizer, settings, rows=draw(stored_rows(job, settings)))
    # The examples trained on are a draw themselves: only they are in the cache.
    data = load_data(job, tokenizer, settings)
    return replace(data, dataset=draw(data.dataset))


def _reading_only(job: Job, path: Path) -> Job:
    """Return the job with the cache alone as its teacher: documents that are not in it have none."""
    args = copy(job.args)
    args.teacher_cache = str(path)
    args.teacher_model_name_or_path = None
    args.teacher_missing = "student"
    return replace(job, args=args, settings=replace(job.settings, teacher=None))


def _with_sample_cache(job: Job, path: Path) -> Job:
    """Return the job with a cache of its own for draws: the run's cache stays untouched until the run fills it."""
    args = copy(job.args)
    args.teacher_cache = f"{path}-sample"
    if job.target.role == "reference" and args.reference_model_name_or_path != "teacher":
        args.teacher_model_name_or_path = None  # beside a teacher model the cache would be the teacher's
    return replace(job, args=args)
