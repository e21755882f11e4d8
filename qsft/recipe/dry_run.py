"""`--dry_run`: print what a recipe would do, after every check of the real run that needs no weights.

Nothing is trained, captured or started: functions that would make models are only looked up.
"""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.filesize import decimal
from transformers import PreTrainedTokenizerBase

from qsft.data.load import TrainingData
from qsft.data.sources import CURATED_MANIFEST, find_source
from qsft.files import nearest_directory, shown
from qsft.inference.loading import default_device
from qsft.losses.kernel_path import takes_kernels
from qsft.processes import is_main
from qsft.recipe.curation import curated_settings, read_curation
from qsft.recipe.job import Job, configure
from qsft.recipe.job_data import load_data, load_student_tokenizer
from qsft.recipe.memory import count_parameters
from qsft.recipe.model_shapes import student_config
from qsft.recipe.prepare import resolve_job_teacher, teacher_cache_path
from qsft.redaction import redact
from qsft.targets.table import formula
from qsft.targets.view import IGNORED
from qsft.teacher.cache import TeacherCache
from qsft.teacher.format.encoding import bytes_per_label_token
from qsft.teacher.format.manifest import MANIFEST
from qsft.teacher.sources.open_source import open_source
from qsft.teacher.vocabulary import Vocabulary
from qsft.train.columns import check_columns_exist, columns_read_by
from qsft.train.open_teacher import capture_settings
from qsft.train.teacher import LiveModel
from qsft.user_functions import import_function, is_function_name
from qsft.validation import counted

ADAM_BYTES = 8  # per trained parameter in a checkpoint: two moments in float32

Lines = Iterator[tuple[str, Any]]


def print_dry_run(job: Job) -> None:
    """Run the checks and print configuration, data, steps, teacher and disk space, in the order they are known.

    Raises:
        ValueError, OSError: what the real run would raise before it needs weights.
    """
    check_functions(job)
    takes_kernels(job.args.head_kernel, default_device().type)
    _print_section("configuration", configuration_lines(job))
    tokenizer = None
    if not is_function_name(job.student):
        tokenizer = load_student_tokenizer(job)
    data = load_dry_run_data(job, tokenizer)
    _print_section("data", data_lines(job, data, tokenizer))
    if data is not None:
        check_columns_exist(data.dataset, columns_read_by(job.target, job.args))
        _print_section("steps", step_lines(job, data))
    _print_section("teacher", teacher_lines(job, data, tokenizer))
    _print_section("disk", disk_lines(job, data, tokenizer))
    problem = device_problem(job)
    _print(f"\nNothing was trained: {problem or 'leave --dry_run out to start.'}")


def _print_section(title: str, lines: Lines) -> None:
    _print(f"\n{title}")
    for name, value in lines:
        _print(f"  {name:<30} {value}")


def _print(text: str) -> None:
    if is_main():
        print(text, flush=True)


def device_problem(job: Job) -> str | None:
    """Return why the run cannot start on this machine's device; None where it can, and under a launcher."""
    if job.processes > 1:
        return None
    try:
        configure(job.recipe)
    except ValueError as error:
        return str(error)
    return None


def check_functions(job: Job) -> None:
    """Import the functions that the recipe names, without calling those that make models."""
    names = {
        "model_name_or_path": job.student,
        "teacher_model_name_or_path": job.args.teacher_model_name_or_path,
        "reference_model_name_or_path": job.args.reference_model_name_or_path,
        "gold": job.settings.gold,
        "verifier": job.settings.verifier,
    }
    for key, name in names.items():
        if name is not None and is_function_name(name):
            import_function(name, key)


def configuration_lines(job: Job) -> Lines:
    """Yield the recipe, its values, the values that were computed from them, and the number of processes."""
    yield "recipe", job.recipe.address or "the command line"
    resolved = {**vars(job.settings), **vars(job.model), **vars(job.args)}
    derived = ("output_dir", "per_device_train_batch_size", "gradient_accumulation_steps")
    shown_values = {name: resolved[name] for name in dict.fromkeys([*job.recipe.values, *derived])}
    for name, value in redact(shown_values).items():
        if name != "dry_run":
            yield name, getattr(value, "value", value)  # the value of an enum
    yield "processes", job.processes


def load_dry_run_data(job: Job, tokenizer: PreTrainedTokenizerBase | None) -> TrainingData | None:
    """Return the training examples; None where they are known only after a curation or after a model was made."""
    settings = job.settings
    if settings.curate is not None:
        directory = read_curation(settings.curate, job.recipe.output_dir).output_dir
        if not (directory / CURATED_MANIFEST).is_file():
            return None
        settings = curated_settings(settings, directory)
    if tokenizer is None and find_source(settings) is not None:
        return None
    return load_data(replace(job, settings=settings), tokenizer, settings, multiple_of=job.rows_per_step)


def data_lines(job: Job, data: TrainingData | None, tokenizer: PreTrainedTokenizerBase | None) -> Lines:
    """Yield where the examples come from, how many there are at each stage, and the first one as text."""
    if data is None:
        reason = "the curation" if job.settings.curate is not None else f"{job.student} has made the model"
        yield "from", f"{job.settings.dataset_name}; known after {reason}"
        return
    yield "from", data.manifest["from"]
    for key, value in data.manifest.get("set aside", {}).items():
        yield key, f"not {value}: the recipe sets it for its own data set"
    for stage, count in data.manifest["rows"].items():
        yield f"rows {stage}", f"{count:,}"
    for note in data.manifest.get("notes", []):
        yield "note", note
    if tokenizer is not None and "input_ids" in data.dataset.column_names and "labels" in data.dataset.column_names:
        row = data.dataset[0]
        first_label = next(i for i, label in enumerate(row["labels"]) if label != IGNORED)
        yield "first prompt", repr(tokenizer.decode(row["input_ids"][:first_label]))
        yield "first response", repr(tokenizer.decode(row["input_ids"][first_label:]))


def step_lines(job: Job, data: TrainingData) -> Lines:
    """Yield the global batch with its factors, and the number of optimizer steps."""
    per_device = job.args.per_device_train_batch_size
    accumulation = job.args.gradient_accumulation_steps
    product = f"{per_device} per device × {accumulation} accumulation × {counted(job.processes, 'process')}"
    yield "global batch", f"{job.global_batch} = {product}"
    yield "optimizer steps", job.optimizer_steps(len(data.dataset))


def teacher_lines(job: Job, data: TrainingData | None, tokenizer: PreTrainedTokenizerBase | None) -> Lines:
    """Yield the target and its teacher; a missing teacher and another tokenizer are errors, as in the real run."""
    yield "target", f"{job.args.target} ({formula(job.target)})"
    role = job.target.role or "teacher"
    resolved = resolve_job_teacher(job)
    if resolved is None:
        yield role, "not read by this target"
        return
    model = None if resolved.source is None else resolved.source.model
    if resolved.source is not None and resolved.source.is_base:
        yield role, "the student before training"
    else:
        yield role, model or "the cache alone"
        if isinstance(model, str) and tokenizer is not None and not is_function_name(model):
            open_source(model).shared_ids(Vocabulary.of(tokenizer))
            yield "tokenizers", "match"
    if isinstance(resolved, LiveModel):
        yield "cache", "none: the teacher runs in every step"
    else:
        yield "cache", cache_state(job, data, tokenizer)


def cache_state(job: Job, data: TrainingData | None, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Say where the cache is and how many of the documents it has."""
    path = teacher_cache_path(job, tokenizer)
    if path is None:
        return "in the default location: missing; the first run builds it"
    if not (path / MANIFEST).exists():
        return f"{shown(path)}: missing; the first run builds it"
    cache = TeacherCache(path)
    if data is None or job.args.packing or "input_ids" not in data.dataset.column_names:
        return f"{shown(path)}: {counted(len(cache), 'document')}; which are missing is known after preparation"
    limit = job.args.max_length
    rows = data.dataset
    documents = ({name: row[name][:limit] for name in ("input_ids", "labels")} for row in rows)
    cached = sum(document in cache for document in documents)
    state = "complete" if cached == len(rows) else f"{len(rows) - cached:,} missing; the next run adds them"
    return f"{shown(path)}: {cached:,} of {counted(len(rows), 'document')}, {state}"


def disk_lines(job: Job, data: TrainingData | None, tokenizer: PreTrainedTokenizerBase | None) -> Lines:
    """Yield the disk space that cache and checkpoints need.

    Raises:
        OSError: there is less space than they need.
    """
    if is_function_name(job.student):
        yield "needed", f"known after {job.student} has made the model"
        return
    config = student_config(job)
    needed = {Path(job.recipe.output_dir): ("model and checkpoints", _output_bytes(job, config))}
    cache_bytes = _cache_bytes(job, data, config.vocab_size)
    path = teacher_cache_path(job, tokenizer) if cache_bytes else None
    if path is not None and not (path / MANIFEST).exists():
        needed[path] = ("teacher cache", cache_bytes)
    for directory, (what, size) in needed.items():
        free = shutil.disk_usage(nearest_directory(directory)).free
        if free < size:
            raise OSError(
                f"{what} need about {decimal(size)} in {shown(directory)}, but {decimal(free)} are free. Free some "
                "space, or choose another directory with --output_dir and --teacher_cache."
            )
        yield what, f"about {decimal(size)} in {shown(directory)} ({decimal(free)} free)"


def _output_bytes(job: Job, config: Any) -> int:
    """Bytes of the final model and of the checkpoints that are kept at the same time."""
    total, trained = count_parameters(config, job.model)
    dtype = job.model.dtype or "float32"
    width = 4 if dtype in ("auto", "float32") else 2
    saved = trained if job.model.use_peft else total
    if str(getattr(job.args.save_strategy, "value", job.args.save_strategy)) == "no":
        return saved * width
    # One more than is kept: the old checkpoint is deleted after the new one is complete.
    checkpoints = (job.args.save_total_limit or 1) + 1
    return saved * width + checkpoints * (saved * width + trained * ADAM_BYTES)


def _cache_bytes(job: Job, data: TrainingData | None, vocab_size: int) -> int:
    reads_cache = job.target.role is not None and not job.args.teacher_live
    if not reads_cache or data is None or "labels" not in data.dataset.column_names:
        return 0
    labels = sum(sum(label != IGNORED for label in row) for row in data.dataset["labels"])
    settings = capture_settings(job.args)
    top_k = min(settings["top_k"], vocab_size)
    return int(labels * bytes_per_label_token(settings["cache_encoding"], top_k, vocab_size))
