"""What `qsft explore tokens` and `qsft explore alignment` look at: student, tokenizer, documents, target, teacher."""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from qsft.inference.loading import default_device, load_model, load_tokenizer
from qsft.recipe.job import configure, on_this_device
from qsft.recipe.job_data import load_data, load_student_tokenizer, stored_rows
from qsft.recipe.prepare import PreparedJob, apply_curation, make_models, teacher_cache_path
from qsft.recipe.recipe_file import Recipe
from qsft.targets.registry import DEFAULT_TARGET, make_target
from qsft.targets.target import Target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents
from qsft.teacher.format.manifest import MANIFEST
from qsft.train.trainer import TargetSFTTrainer


@dataclass(frozen=True)
class ExploreInputs:
    """A student and the documents it is shown on.

    Attributes:
        model: The student.
        tokenizer: Its tokenizer.
        documents: Documents with input_ids and labels, in random order.
        target: The target.
        teacher: The cache or the live teacher that the target reads.
    """

    model: Any
    tokenizer: Any
    documents: Iterable[Any]
    target: Target
    teacher: Any


def inputs_of_recipe(recipe: Recipe, num_documents: int, seed: int) -> ExploreInputs:
    """Return a random draw of a recipe's documents, prepared by the trainer as for training."""
    job = make_models(configure(on_this_device(recipe)))
    tokenizer = load_student_tokenizer(job)
    job = apply_curation(job, tokenizer)
    trainer = _trainer_of_draw(job, tokenizer, num_documents, seed)
    documents: Iterable[Any] = Documents(trainer.train_dataset)
    if trainer.cache is not None:
        cache = trainer.cache
        documents = (document for document in documents if document in cache)
    return ExploreInputs(trainer.model, tokenizer, documents, trainer.target, trainer.cache or trainer.live_teacher)


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


def _trainer_of_draw(job: Any, tokenizer: Any, num_documents: int, seed: int) -> TargetSFTTrainer:
    """Return the trainer of a random draw of examples.

    A few more than requested are drawn: some may have no label, or not be in the cache. An existing cache is read, not
    added to. Without one, the drawn examples go into a cache beside it, which the next draw adds to: the run's own
    cache stays untouched until the run fills it.
    """
    count = num_documents + num_documents // 4 + 8

    def draw(rows: Dataset) -> Dataset:
        return rows.shuffle(seed=seed).select(range(min(len(rows), count)))

    settings = job.settings
    if settings.sample_rows is None:
        data = load_data(job, tokenizer, settings, rows=draw(stored_rows(job, settings)))
    else:  # the examples trained on are a draw themselves: only they are in the cache
        data = load_data(job, tokenizer, settings)
        data = replace(data, dataset=draw(data.dataset))
    args = copy(job.args)
    teacher = settings.teacher
    path = teacher_cache_path(job, tokenizer)
    if path is not None and (path / MANIFEST).is_file():
        args.teacher_cache = str(path)
        args.teacher_model_name_or_path = None
        args.teacher_missing = "student"
        teacher = None
    elif path is not None:
        args.teacher_cache = f"{path}-sample"
        if job.target.role == "reference" and args.reference_model_name_or_path != "teacher":
            args.teacher_model_name_or_path = None  # beside a teacher model the cache would be the teacher's
    job = replace(job, args=args, settings=replace(settings, teacher=teacher))
    return PreparedJob(job, tokenizer, data).trainer()
