"""From a configured job to its trainer, in named stages: make models, load the tokenizer, curate, load the data."""

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, TrainerCallback
from trl import get_peft_config, get_quantization_config

from qsft.data.load import TrainingData
from qsft.recipe.curation import Curation, curate_dataset, curated_settings, read_curation
from qsft.recipe.job import Job, configure
from qsft.recipe.job_data import load_data, load_student_tokenizer
from qsft.recipe.keys import DATASET_KEYS
from qsft.train.open_teacher import cache_directory
from qsft.train.teacher import CachedTeacher, LiveModel, MissingTeacherError, resolve_teacher
from qsft.train.trainer import TargetSFTTrainer
from qsft.user_functions import import_function, is_function_name


@dataclass(frozen=True)
class PreparedJob:
    """A job whose models exist and whose data is loaded.

    Args:
        job: the job; its models are directories or hub ids.
        tokenizer: the student's tokenizer.
        data: the training examples.
    """

    job: Job
    tokenizer: PreTrainedTokenizerBase
    data: TrainingData

    def trainer(self, callbacks: list[TrainerCallback] | None = None) -> TargetSFTTrainer:
        """Return the trainer; making it builds or completes the teacher's cache, on all processes."""
        job = self.job
        return TargetSFTTrainer(
            model=job.student,
            args=job.args,
            train_dataset=self.data.dataset,
            eval_dataset=self._eval_dataset(),
            processing_class=self.tokenizer,
            teacher=job.settings.teacher,
            peft_config=get_peft_config(job.model),
            quantization_config=get_quantization_config(job.model),
            callbacks=callbacks,
        )

    def _eval_dataset(self) -> Dataset | None:
        """All examples of `dataset_test_split`, prepared as those of training."""
        split = self.job.settings.dataset_test_split
        if split is None:
            return None
        settings = replace(self.job.settings, dataset_train_split=split, sample_rows=None)
        return load_data(self.job, self.tokenizer, settings).dataset


def prepare(job: Job) -> PreparedJob:
    """Run the stages that a training needs before its trainer is made, on all processes."""
    check_teacher_given(job)
    job = make_models(job)
    tokenizer = load_student_tokenizer(job)
    job = apply_curation(job, tokenizer)
    data = load_data(job, tokenizer, job.settings, multiple_of=job.rows_per_step)
    return PreparedJob(job, tokenizer, data)


def make_models(job: Job) -> Job:
    """Call the functions that a recipe names as student or teacher; they return the directories of the models."""
    student = make_model(job.student, "model_name_or_path", job.args.seed)
    model = replace(job.model, model_name_or_path=student)
    settings = job.settings
    if is_function_name(settings.teacher):
        settings = replace(settings, teacher=make_model(str(settings.teacher), "teacher", job.args.seed))
    args = copy(job.args)
    for key in ("teacher_model_name_or_path", "reference_model_name_or_path"):
        name = getattr(args, key)
        if is_function_name(name):
            setattr(args, key, make_model(name, key, args.seed))
    return replace(job, model=model, args=args, settings=settings)


def resolve_job_teacher(job: Job) -> CachedTeacher | LiveModel | None:
    """Return the teacher or reference that the job's target reads; ValueError when it needs one and none is given."""
    try:
        return resolve_teacher(
            job.settings.teacher,
            job.target,
            job.args,
            job.student,
            get_peft_config(job.model),
            get_quantization_config(job.model),
        )
    except MissingTeacherError:
        raise MissingTeacherError(
            f"the target {job.args.target} needs a teacher, but none is given. Add --teacher NAME: a model id or path, "
            "the directory of a cache, or base for the student before training. Or choose a target without a teacher, "
            "such as --target dft."
        ) from None


def check_teacher_given(job: Job) -> None:
    """Raise MissingTeacherError when the target needs a teacher and none is given; nothing is loaded or made."""
    reads_teacher = job.target.role == "teacher"
    anchors_to_teacher = job.target.role == "reference" and job.args.reference_model_name_or_path == "teacher"
    if reads_teacher or anchors_to_teacher:
        resolve_job_teacher(job)


def teacher_cache_path(job: Job, tokenizer: PreTrainedTokenizerBase | None) -> Path | None:
    """Return where the cache is or will be.

    None where the target reads no cache, and where its name depends on a model that a function has not made yet.
    """
    resolved = resolve_job_teacher(job)
    if not isinstance(resolved, CachedTeacher):
        return None
    if resolved.directory is not None:
        return resolved.directory
    source = resolved.source
    if tokenizer is None or (source is not None and isinstance(source.model, str) and is_function_name(source.model)):
        return None
    return cache_directory(resolved, job.student, tokenizer, job.args)


def make_model(name: str, key: str, seed: int) -> str:
    """Return the name of a model, calling `module:function` with the seed."""
    if not is_function_name(name):
        return name
    return str(import_function(name, key)(seed))


def apply_curation(job: Job, tokenizer: PreTrainedTokenizerBase) -> Job:
    """Run the curation of a recipe that has one, unless it is complete, and read its result from then on."""
    if job.settings.curate is None:
        return job
    curation = read_curation(job.settings.curate, job.recipe.output_dir)
    curate_job(job, tokenizer, curation)
    return replace(job, settings=curated_settings(job.settings, curation.output_dir))


def curate_job(job: Job, tokenizer: PreTrainedTokenizerBase, curation: Curation) -> dict[str, Any]:
    """Give a method the rows that training would have read, and return the manifest of what it made."""
    return curate_dataset(job, tokenizer, curation, partial(train_round, job))


def train_round(job: Job, rows: Path, start: str, output_dir: Path) -> None:
    """Train the model of one round of a curation: the recipe's settings, other rows, another initial model."""
    dropped = {"curate", *DATASET_KEYS}
    values = {key: value for key, value in job.recipe.values.items() if key not in dropped}
    values = {"target": "sft", **values, "dataset_name": str(rows), "model_name_or_path": start}
    recipe = replace(job.recipe, values=values, output_dir=str(output_dir))
    trainer = prepare(configure(recipe)).trainer()
    trainer.train()
    trainer.save_model(str(output_dir))
    trainer.accelerator.wait_for_everyone()
