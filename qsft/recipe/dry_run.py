"""What a run says about itself: before it (dry run), after it (what next), and when it was stopped (how to resume)."""

import math
import os
import shlex
from collections.abc import Iterator
from enum import Enum
from typing import Any

from qsft.files import shown
from qsft.recipe.job import Job
from qsft.recipe.relaunch import split_words
from qsft.targets.view import IGNORED
from qsft.teacher.lookup import TeacherCache
from qsft.teacher.manifest import MANIFEST


def dry_run(job: Job) -> None:
    """Print the resolved configuration, the data, the steps and the state of the cache, in the order they are known."""
    for part in (configuration, data, steps, teacher):
        print(f"\n{part.__name__}", flush=True)
        for name, value in part(job):
            print(f"  {name:<30} {value}", flush=True)
    print("\nNothing was trained: leave --dry_run out to start.")


def configuration(job: Job) -> Iterator[tuple[str, Any]]:
    """Every value the recipe sets, as resolved for this machine."""
    yield "recipe", job.recipe.address or "the command line"
    resolved = {**vars(job.settings), **vars(job.model), **vars(job.args)}
    derived = ("output_dir", "per_device_train_batch_size", "gradient_accumulation_steps")
    for name in dict.fromkeys([*job.recipe.values, *derived]):
        if name != "dry_run":
            value = resolved[name]
            yield name, value.value if isinstance(value, Enum) else value
    yield "processes", job.processes


def data(job: Job) -> Iterator[tuple[str, Any]]:
    """Where the rows come from, how many there are at each stage, and the first one as text."""
    manifest = job.data.manifest
    yield "from", manifest["from"]
    for key, value in manifest.get("set aside", {}).items():
        yield key, f"not {value}: the recipe says that about {job.recipe.name}'s own data set"
    for stage, count in manifest["rows"].items():
        yield f"rows {stage}", f"{count:,}"
    if "input_ids" in job.data.dataset.column_names:
        row = job.data.dataset[0]
        first = next(at for at, label in enumerate(row["labels"]) if label != IGNORED)
        yield "first prompt", repr(job.tokenizer.decode(row["input_ids"][:first]))
        yield "first response", repr(job.tokenizer.decode(row["input_ids"][first:]))


def steps(job: Job) -> Iterator[tuple[str, Any]]:
    """How many optimiser steps the run will take, and of what."""
    per_device, accumulation = job.args.per_device_train_batch_size, job.args.gradient_accumulation_steps
    product = f"{per_device} per device × {accumulation} accumulation × {job.processes} processes"
    yield "global batch", f"{job.global_batch} = {product}"
    yield "optimiser steps", optimiser_steps(job, len(job.data.dataset))


def optimiser_steps(job: Job, rows: int) -> int | str:
    """Steps of the whole run; unknown where packing decides how many rows there are."""
    if job.args.max_steps > 0:
        return job.args.max_steps
    if job.args.packing:
        return "known after packing"
    return math.ceil(-(-rows // job.global_batch) * job.args.num_train_epochs)


def teacher(job: Job) -> Iterator[tuple[str, Any]]:
    """The target, and how much of what it reads is cached already."""
    yield "target", job.target
    role = job.target.role
    if role is None:
        yield "teacher", "not read by this target"
    else:
        yield role, getattr(job.args, f"{role}_model_name_or_path")
        yield "cache", "none: the teacher runs in every step" if job.args.teacher_live else cache_state(job)


def cache_state(job: Job) -> str:
    """How many of the run's documents the cache holds."""
    path = job.cache_path
    if path is None or not (path / MANIFEST).exists():
        return f"{shown(path or 'none')}: missing; the first run builds it"
    cache, cut = TeacherCache(path), slice(None, job.args.max_length)
    if job.args.packing or "input_ids" not in job.data.dataset.column_names:
        return f"{shown(path)}: {len(cache):,} documents; which are missing is known after preparation"
    held = [cache.has(row["input_ids"][cut], row["labels"][cut]) for row in job.data.dataset]
    state = "complete" if all(held) else f"{len(held) - sum(held):,} missing; the next run adds them"
    return f"{shown(path)}: {sum(held):,} of {len(held):,} documents, {state}"


def next_steps(job: Job) -> str:
    """Where the model is and how to measure it, by the tasks and the protocol of its recipe where it has them."""
    place = shown(job.recipe.output_dir)
    tasks = [] if job.settings.eval_tasks else ["--tasks", "math"]
    return f"\nThe model is in {place}. Evaluate it with\n  {shlex.join(['qsft', 'eval', place, *tasks])}"


def resume_command(job: Job, step: int) -> str:
    """What to type to continue a run that was stopped."""
    checkpoint = f"{shown(job.recipe.output_dir)}/checkpoint-{step}"
    recipe = [job.recipe.address] if job.recipe.path else []
    _, words = split_words(list(job.recipe.overrides), ("resume_from_checkpoint",))
    by_file = job.recipe.path is not None and job.recipe.address != job.recipe.name
    started = os.environ.get("QSFT_COMMAND", "accelerate launch" if by_file else "qsft train")
    command = f"{started} {shlex.join([*recipe, *words, '--resume_from_checkpoint', checkpoint])}"
    again = "" if job.processes == 1 or "QSFT_COMMAND" in os.environ else " and the launcher's options of this run"
    return f"\nStopped after step {step}; the checkpoint is {checkpoint}. Continue with this{again}:\n  {command}"
