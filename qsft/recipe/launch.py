"""Run a recipe: data, cache, training, what next; the same under accelerate, torchrun and plain python.

accelerate launch recipes/X.yaml --key value     ends in launch(__file__), the recipe's last line
qsft train recipes/X.yaml --key value            ends in train(read_recipe(…))
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from qsft.files import shown
from qsft.processes import exit_process, is_main, process_group, world_size
from qsft.recipe.recipe_file import Recipe, read_recipe

if TYPE_CHECKING:
    from qsft.recipe.job import Job
    from qsft.teacher.cache import TeacherCache


def launch(file: str) -> None:
    """Run the recipe in `file` with the words after it as overrides, and exit; a recipe's last line calls this."""
    try:
        code = train(read_recipe(file, sys.argv[1:]))
    except (ValueError, OSError) as error:
        # A message that says what, why and what to do needs no traceback above it.
        print(f"qsft: {error}", file=sys.stderr)
        code = 2
    exit_process(code)


def train(recipe: Recipe) -> int:
    """Train a recipe to its end, or describe it with `dry_run`; the exit code."""
    from qsft.recipe.job import configure

    if recipe.settings.dry_run:
        from qsft.recipe.dry_run import dry_run

        dry_run(configure(recipe, world_size()))
        return 0
    with process_group():
        make_room(recipe)
        run(configure(recipe))
    return 0


def run(job: "Job") -> None:
    """Load the data, complete the cache, train, save; or stop at a signal with a checkpoint to resume from."""
    from qsft.recipe.dry_run import next_steps, resume_command
    from qsft.recipe.stop import StopOnSignal
    from qsft.recipe.trained import record_recipe

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
    from qsft.train.checkpoints import refuse_other_run, set_aside

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


def build_recipe_cache(recipe: Recipe) -> "TeacherCache":
    """The teacher's cache of a recipe, built or completed on all processes, from the documents training will see."""
    from qsft.recipe.job import configure

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
