"""Run a recipe, or say what it would do; the same under accelerate, torchrun and plain python.

On Ctrl-C or SIGTERM the step is finished and a checkpoint written; all processes exit together.
"""

import os
import shlex
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from qsft.files import shown
from qsft.processes import is_main, process_group, world_size
from qsft.recipe.job import WORLDS, Job, configure
from qsft.recipe.recipe_file import Recipe
from qsft.recipe.record import RecipeRecord
from qsft.recipe.relaunch import handled, split_words
from qsft.targets.view import IGNORED
from qsft.teacher.cache import TeacherCache
from qsft.teacher.format.manifest import MANIFEST
from qsft.train.checkpoints import check_complete, describe_existing_run, move_previous_run, resolve_checkpoint
from qsft.train.config import as_dict


def train(recipe: Recipe) -> None:
    """Load the data, complete the cache, train, save; or stop at a signal with a checkpoint to resume from."""
    if recipe.settings.dry_run:
        dry_run(configure(recipe, world_size()))
        return
    with process_group():
        make_room(recipe)
        job, stop = configure(recipe), StopOnSignal()
        if job.args.should_save:
            job.data.write_manifest(recipe.output_dir)
            recipe_record(job).write(recipe.output_dir)
        trainer = job.trainer(callbacks=[stop])
        with handled(stop.ask, signal.SIGINT, signal.SIGTERM):
            trainer.train(resume_from_checkpoint=job.args.resume_from_checkpoint)
        if stop.stopped:
            trainer.accelerator.print(resume_command(job, trainer.state.global_step))
        else:
            trainer.save_model(recipe.output_dir)
            trainer.save_state()  # the logged metrics: `qsft explore run` reads them
            trainer.accelerator.print(next_steps(job))
        trainer.accelerator.wait_for_everyone()
        trainer.end()


def make_room(recipe: Recipe) -> None:
    """Refuse another run's checkpoints, or with `overwrite` move them aside; refuse one that cannot be resumed from
    now, and not after the teacher's cache was built."""
    output, overwrite = recipe.output_dir, recipe.settings.overwrite
    asked = recipe.values.get("resume_from_checkpoint")
    if overwrite and asked is not None:
        raise ValueError("--overwrite starts anew and --resume_from_checkpoint continues: leave one of them out.")
    if asked is not None:
        check_complete(Path(str(resolve_checkpoint(output, asked))), digests=False)
    elif not overwrite and (told := describe_existing_run(output)):
        raise ValueError(told)
    if overwrite and is_main() and (place := move_previous_run(output)):
        print(f"what an earlier run left in {shown(output)} is now in {shown(place)}", flush=True)


def recipe_record(job: Job) -> RecipeRecord:
    """Return what recipe.json says about a run."""
    return RecipeRecord(
        recipe=job.recipe.name,
        target=str(job.args.target),
        target_kwargs=as_dict(job.args.target_kwargs),
        eval_tasks=job.settings.eval_tasks,
        eval_protocol=job.recipe.eval_protocol,
        values={**job.recipe.values, "model_name_or_path": job.student},
    )


def build_recipe_cache(recipe: Recipe) -> TeacherCache:
    """The teacher's cache of a recipe, built or completed on all processes, from the documents training will see."""
    with process_group():
        job = configure(recipe)
        trainer = job.trainer()
        if trainer.cache is None:
            raise ValueError(f"target {job.args.target!r} reads no cache. Build it for --target target, say.")
        trainer.accelerator.wait_for_everyone()
        return trainer.cache


class StopOnSignal(TrainerCallback):
    """The first signal that `ask` handles asks for a checkpoint and a stop; a second Ctrl-C kills."""

    asked = False  # this process got a signal
    stopped = False  # all processes agreed to stop

    def ask(self, number: int, _: FrameType | None) -> None:
        # A launcher passes Ctrl-C on as SIGTERM too, so only a second SIGINT means "now".
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.asked = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Ask Trainer to save and stop once any process was signalled: signals reach processes at different steps."""
        asked = self.asked
        if torch.distributed.is_initialized():
            seen = torch.tensor(int(asked), device=args.device)
            torch.distributed.all_reduce(seen, op=torch.distributed.ReduceOp.MAX)
            asked = bool(seen)
        if asked and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
        return control


def dry_run(job: Job) -> None:
    """Print the resolved configuration, the data, the steps and the state of the cache, in the order they are known."""
    say: Any = partial(print, flush=True) if is_main() else lambda line: None
    for part in (configuration, data, steps, teacher):
        say(f"\n{part.__name__}")
        for name, value in part(job):
            say(f"  {name:<30} {value}")
    say("\nNothing was trained: leave --dry_run out to start.")


def configuration(job: Job) -> Iterator[tuple[str, Any]]:
    yield "recipe", job.recipe.address or "the command line"
    resolved = {**vars(job.settings), **vars(job.model), **vars(job.args)}
    derived = ("output_dir", "per_device_train_batch_size", "gradient_accumulation_steps")
    for name in dict.fromkeys([*job.recipe.values, *derived]):
        if name != "dry_run":
            yield name, getattr(resolved[name], "value", resolved[name])  # of an enum
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
    per_device, accumulation = job.args.per_device_train_batch_size, job.args.gradient_accumulation_steps
    product = f"{per_device} per device × {accumulation} accumulation × {job.processes} processes"
    yield "global batch", f"{job.global_batch} = {product}"
    yield "optimiser steps", job.optimiser_steps(len(job.data.dataset))


def teacher(job: Job) -> Iterator[tuple[str, Any]]:
    role, live = job.target.role, job.args.teacher_live
    yield "target", job.target
    yield role or "teacher", getattr(job.args, f"{role}_model_name_or_path") if role else "not read by this target"
    if role:
        yield "cache", "none: the teacher runs in every step" if live else cache_state(job)


def cache_state(job: Job) -> str:
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
    what, words = "Evaluate it", ["eval", place, *([] if job.settings.eval_tasks else ["--tasks", "math"])]
    if job.settings.dataset_name in WORLDS:  # it speaks of nothing that a task could ask
        what, words = "See how it trained", ["explore", "run", place]
    return f"\nThe model is in {place}. {what} with\n  {shlex.join(['qsft', *words])}"


def resume_command(job: Job, step: int) -> str:
    checkpoint = f"{shown(job.recipe.output_dir)}/checkpoint-{step}"
    recipe = [job.recipe.address] if job.recipe.path else []
    _, words = split_words(list(job.recipe.overrides), ("resume_from_checkpoint",))
    started = os.environ.get("QSFT_COMMAND", "qsft train" if recipe in ([], [job.recipe.name]) else "accelerate launch")
    command = f"{started} {shlex.join([*recipe, *words, '--resume_from_checkpoint', checkpoint])}"
    again = "" if job.processes == 1 or "QSFT_COMMAND" in os.environ else " and the launcher's options of this run"
    return f"\nStopped after step {step}; the checkpoint is {checkpoint}. Continue with this{again}:\n  {command}"
