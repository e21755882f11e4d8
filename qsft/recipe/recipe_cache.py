"""The teacher cache of a recipe: build it before training, or find where it is."""

from pathlib import Path

from qsft.processes import process_group
from qsft.recipe.job import configure, on_this_device
from qsft.recipe.job_data import load_student_tokenizer
from qsft.recipe.prepare import prepare, resolve_job_teacher, teacher_cache_path
from qsft.recipe.recipe_file import Recipe
from qsft.teacher.cache import TeacherCache
from qsft.train.teacher import CachedTeacher
from qsft.user_functions import is_function_name


def build_recipe_cache(recipe: Recipe) -> TeacherCache:
    """Build or complete the teacher's cache of a recipe, on all processes, from the documents training will read."""
    with process_group():
        job = configure(on_this_device(recipe))
        trainer = prepare(job).trainer()
        if trainer.cache is None:
            raise ValueError(
                f"target {job.args.target!r} does not read a cache. Give a target that does, such as target_sft."
            )
        trainer.accelerator.wait_for_everyone()
        return trainer.cache


def find_recipe_cache(recipe: Recipe) -> Path:
    """Return the directory of the teacher cache that training a recipe uses, whether it exists or not.

    Raises:
        ValueError: the target reads no cache, or a function that has not run yet makes the teacher or the student.
    """
    job = configure(on_this_device(recipe))
    tokenizer = None if is_function_name(job.student) else load_student_tokenizer(job)
    path = teacher_cache_path(job, tokenizer)
    if path is not None:
        return path
    if isinstance(resolve_job_teacher(job), CachedTeacher):
        raise ValueError(
            f"{recipe.name} makes its models by a function, and the name of their cache depends on them. Give the "
            "cache's directory; `qsft cache list` shows the existing ones."
        )
    raise ValueError(
        f"target {job.args.target!r} of {recipe.name} does not read a teacher cache. Give a target that does, such as "
        "--target target_sft, or the directory of a cache."
    )
