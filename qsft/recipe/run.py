"""Train a recipe, the same under accelerate, torchrun and plain python.

On Ctrl-C or SIGTERM the current step is finished and a checkpoint written; all processes exit together. Before the
first step the run ends at once.
"""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from qsft.files import shown
from qsft.processes import is_main, process_group, world_size
from qsft.recipe.dry_run import print_dry_run
from qsft.recipe.job import Job, configure
from qsft.recipe.memory import count_parameters
from qsft.recipe.model_shapes import student_config
from qsft.recipe.prepare import prepare
from qsft.recipe.recipe_file import Recipe
from qsft.recipe.record import RecipeRecord
from qsft.recipe.relaunch import COMMAND_VARIABLE, split_words
from qsft.recipe.stopping import StopRequest, run_until_stopped
from qsft.redaction import redact_words
from qsft.train.checkpoints import (
    check_complete,
    describe_existing_run,
    hold_run_directory,
    move_previous_run,
    resolve_checkpoint,
)
from qsft.train.config import as_dict


def train(recipe: Recipe, stop: StopRequest | None = None) -> None:
    """Prepare the data, complete the cache, train and save; or stop at a signal with a checkpoint to resume from.

    Args:
        recipe: what to train.
        stop: where signals are already handled, what they request.
    """
    if stop is None:
        run_until_stopped(lambda stop: train(recipe, stop))
        return
    if recipe.settings.dry_run:
        check_output_dir(recipe)
        print_dry_run(configure(recipe, world_size()))
        return
    with process_group(), claim_output_dir(recipe):
        prepared = prepare(configure(recipe))
        job = prepared.job
        hint = launch_hint(job)
        if hint is not None and is_main():
            print(hint, file=sys.stderr, flush=True)
        if job.args.should_save:
            prepared.data.write_manifest(recipe.output_dir)
            recipe_record(job).write(recipe.output_dir)
        stop_on_signal = StopOnSignal(stop)
        trainer = prepared.trainer(callbacks=[stop_on_signal])
        stop.training_starts()
        trainer.train(resume_from_checkpoint=job.args.resume_from_checkpoint)
        if stop_on_signal.stopped:
            trainer.accelerator.print(resume_message(job, trainer.state.global_step))
        else:
            trainer.save_model(recipe.output_dir)
            trainer.save_state()  # the logged metrics, which `qsft explore run` reads
            trainer.accelerator.print(next_steps_message(job))
        trainer.accelerator.wait_for_everyone()
        trainer.end()


def launch_hint(job: Job) -> str | None:
    """Return what to do when a recipe that is made for several GPUs is started on one; None where that is not so."""
    if job.settings.launch is None or job.processes > 1 or job.args.use_cpu or job.model.use_peft:
        return None
    total, trained = count_parameters(student_config(job), job.model)
    pure_bf16 = job.model.dtype == "bfloat16"
    needed = (total * 2 + trained * 6) if pure_bf16 else (total * 4 + trained * 12)
    advice = f"start it with --accelerate_config {job.settings.launch} on several GPUs"
    if not pure_bf16:
        advice += ", train bf16 weights with half the memory (--dtype bfloat16)"
    return (
        f"{job.recipe.name} is made for {job.settings.launch}, but runs on one GPU: weights, gradients and optimizer "
        f"take about {needed / 1e9:.0f} GB. If that does not fit, {advice}, or train an adapter (--use_peft true). "
        f"`qsft plan {job.recipe.address} --gpus N` shows the memory of each."
    )


@contextmanager
def claim_output_dir(recipe: Recipe) -> Iterator[None]:
    """Keep the output directory for this run, and with `overwrite` move what is there aside."""
    check_output_dir(recipe)
    if not is_main():
        yield
        return
    with hold_run_directory(Path(recipe.output_dir)):
        check_output_dir(recipe)  # another run may have ended between the first check and the lock
        if recipe.settings.overwrite:
            moved_to = move_previous_run(recipe.output_dir)
            if moved_to is not None:
                print(f"the earlier run in {shown(recipe.output_dir)} was moved to {shown(moved_to)}", flush=True)
        yield


def check_output_dir(recipe: Recipe) -> None:
    """Check that the output directory is free for this run; nothing is changed.

    A checkpoint that cannot be resumed from is an error here, before the teacher's cache is built.

    Raises:
        ValueError: the directory has checkpoints of another run, or the requested checkpoint is incomplete; or the
            directory is above the current one, or with `overwrite` that one itself.
    """
    output_dir = recipe.output_dir
    overwrite = recipe.settings.overwrite
    check_not_above_current_directory(output_dir, overwrite=overwrite)
    requested = recipe.values.get("resume_from_checkpoint")
    if overwrite and requested is not None:
        raise ValueError("--overwrite starts anew and --resume_from_checkpoint continues: leave one of them out.")
    if requested is not None:
        check_complete(Path(str(resolve_checkpoint(output_dir, requested))), digests=False)
        return
    problem = None if overwrite else describe_existing_run(output_dir)
    if problem:
        raise ValueError(problem)


def check_not_above_current_directory(output_dir: str, *, overwrite: bool) -> None:
    """Raise ValueError for an output directory that holds the current directory and with it files of other purposes."""
    resolved = Path(os.path.realpath(output_dir))  # Path.resolve raises RuntimeError for a loop of symbolic links
    here = Path.cwd().resolve()
    if resolved in here.parents:
        raise ValueError(
            f"output_dir {output_dir!r} is {resolved}, which contains the current directory. A run writes README.md, "
            "config.json and other files there: choose a directory of its own, such as runs/mine."
        )
    if overwrite and resolved == here:
        raise ValueError(
            f"--overwrite would move everything in the current directory {here} aside. Run the command from another "
            "directory, or choose another --output_dir."
        )


def recipe_record(job: Job) -> RecipeRecord:
    """Return what recipe.json records about a run."""
    return RecipeRecord(
        recipe=job.recipe.name,
        target=str(job.args.target),
        target_kwargs=as_dict(job.args.target_kwargs),
        eval_tasks=job.settings.eval_tasks,
        eval_protocol=job.recipe.eval_protocol,
        values={**job.recipe.values, "model_name_or_path": job.student},
    )


class StopOnSignal(TrainerCallback):
    """Stops with a checkpoint after the step in which any process received a signal."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop
        self.stopped = False  # all processes agreed to stop

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> TrainerControl:
        """Let Trainer save and stop once any process was signaled: signals reach processes at different steps."""
        self.stop.before_first_step = False
        requested = self.stop.requested
        if torch.distributed.is_initialized():
            flag = torch.tensor(int(requested), device=args.device)
            torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
            requested = bool(flag)
        if requested and state.global_step < state.max_steps:
            self.stopped = True
            control.should_save = True
            control.should_training_stop = True
        return control


def next_steps_message(job: Job) -> str:
    """Say where the model is, and how to evaluate it or, where its recipe has no tasks, how to see its training."""
    output_dir = shown(job.recipe.output_dir)
    if job.settings.eval_tasks:
        suggestion = f"Evaluate it with\n  {shlex.join(['qsft', 'eval', output_dir])}"
    else:
        suggestion = (
            f"See how it trained with\n  {shlex.join(['qsft', 'explore', 'run', output_dir])}\n"
            f"and evaluate it with\n  {shlex.join(['qsft', 'eval', output_dir, '--tasks', 'math'])}"
        )
    return f"\nThe model is in {output_dir}. {suggestion}"


def resume_message(job: Job, step: int) -> str:
    """Say where the checkpoint is and which command continues from it."""
    checkpoint = f"{shown(job.recipe.output_dir)}/checkpoint-{step}"
    recipe = [job.recipe.address] if job.recipe.path else []
    _, overrides = split_words(job.recipe.overrides, ("resume_from_checkpoint",))
    relaunched = os.environ.get(COMMAND_VARIABLE)
    hint = ""
    if relaunched is not None:
        started = relaunched
    else:
        is_command = not recipe or recipe == [job.recipe.name]
        started = "qsft train" if is_command else "accelerate launch"
        if job.processes > 1:
            hint = " and the launcher's options of this run"
    command = f"{started} {shlex.join([*recipe, *redact_words(overrides), '--resume_from_checkpoint', checkpoint])}"
    return f"\nStopped after step {step}; the checkpoint is {checkpoint}. Continue with this{hint}:\n  {command}"
