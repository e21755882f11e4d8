"""Run a recipe: data, cache, training, what next; the same under accelerate, torchrun and plain python.

On Ctrl-C or SIGTERM the step is finished and a checkpoint written; all processes exit together.
"""

import signal
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from qsft.files import shown
from qsft.processes import is_main, process_group, world_size
from qsft.recipe.dry_run import dry_run, next_steps, resume_command
from qsft.recipe.job import Job, configure
from qsft.recipe.recipe_file import Recipe
from qsft.recipe.trained import record_recipe
from qsft.teacher.lookup import TeacherCache
from qsft.train.checkpoints import refuse_other_run, set_aside


def train(recipe: Recipe) -> None:
    """Train a recipe to its end, or describe it with `dry_run`."""
    if recipe.settings.dry_run:
        dry_run(configure(recipe, world_size()))
        return
    with process_group():
        make_room(recipe)
        run(configure(recipe))


def run(job: Job) -> None:
    """Load the data, complete the cache, train, save; or stop at a signal with a checkpoint to resume from."""
    if job.args.should_save:
        job.data.write_manifest(job.recipe.output_dir)
        record_recipe(job)
    stop = StopOnSignal()
    trainer = job.trainer(callbacks=[stop])
    with stop:
        trainer.train(resume_from_checkpoint=job.args.resume_from_checkpoint)
    if stop.stopped:
        trainer.accelerator.print(resume_command(job, trainer.state.global_step))
    else:
        trainer.save_model(job.recipe.output_dir)
        trainer.save_state()  # the logged metrics: `qsft explore run` reads them
        trainer.accelerator.print(next_steps(job))
    trainer.accelerator.wait_for_everyone()
    trainer.end()


def make_room(recipe: Recipe) -> None:
    """Refuse to start anew among the checkpoints of another run; with `overwrite` move that run's files aside."""
    output, overwrite = recipe.output_dir, recipe.settings.overwrite
    resumed = recipe.values.get("resume_from_checkpoint") is not None
    if overwrite and resumed:
        raise ValueError("--overwrite starts anew and --resume_from_checkpoint continues: leave one of them out.")
    if not overwrite and not resumed:
        refuse_other_run(output)
    if overwrite and is_main() and (place := set_aside(output)):
        for file in Path(output).iterdir():
            if file.is_file():  # the earlier run's model, record and logs: a stopped new run must not be taken for it
                file.rename(place / file.name)
        print(f"what an earlier run left in {shown(output)} is now in {shown(place)}", flush=True)


def build_recipe_cache(recipe: Recipe) -> TeacherCache:
    """The teacher's cache of a recipe, built or completed on all processes, from the documents training will see."""
    with process_group():
        job = configure(recipe)
        trainer = job.trainer()
        if trainer.cache is None:
            raise ValueError(
                f"target {job.args.target!r} reads no cache. Build it for one that does, for example with "
                "--target target; every target with the same teacher reads the same cache."
            )
        trainer.accelerator.wait_for_everyone()
        return trainer.cache


class StopOnSignal(TrainerCallback):
    """While entered as a context: the first signal asks for a checkpoint and a stop; a second Ctrl-C kills."""

    def __init__(self) -> None:
        self.asked = False  # this process got a signal
        self.stopped = False  # all processes agreed to stop
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _: FrameType | None) -> None:
        # A launcher passes Ctrl-C on as SIGTERM too, so only a second SIGINT means "now".
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.asked = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """Ask Trainer to save and stop once any process was signalled: signals reach processes at different steps."""
        asked = self.asked
        if torch.distributed.is_initialized():
            seen = torch.tensor(int(asked), device=args.device)
            torch.distributed.all_reduce(seen, op=torch.distributed.ReduceOp.MAX)
            asked = bool(seen)
        if asked and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
        return control
