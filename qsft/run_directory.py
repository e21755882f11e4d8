"""Names of the files and directories inside a run's output directory, and simple questions about them.

    OUTPUT_DIR/
      run.json              which run trains here: its id and the settings that determine its trajectory
      recipe.json           the recipe that made the run (runs started by `qsft train`)
      checkpoint-N/
        run.json            the same for the run that wrote this checkpoint; written first
        complete.json       size and digest of every file; written last, so its absence means an incomplete save
      _eval/                an evaluation of the trained model
      _curated/             the data set that a curation method made for this run
    OUTPUT_DIR.previous/    earlier runs that `--overwrite` moved aside, one directory each

Names that begin with an underscore are skipped by Trainer's upload to the Hub. Paths and predicates only: nothing here
reads or writes the content of a file.
"""

import re
from pathlib import Path

BASE = "base"  # the student before training: as a teacher, a reference, or a model to evaluate

RUN_RECORD = "run.json"
RECIPE_RECORD = "recipe.json"
CHECKPOINT_SEAL = "complete.json"
TRAINER_STATE = "trainer_state.json"  # the last file that Trainer writes into a checkpoint
EVALUATION = "_eval"
CURATED = "_curated"
LAST = "last"  # `resume_from_checkpoint="last"`: the newest complete checkpoint of the run


def evaluation_directory(run: str | Path) -> Path:
    """Where the evaluation of a run's model is written."""
    return Path(run, EVALUATION)


def curated_directory(run: str | Path) -> Path:
    """Where the data set curated for a run is written."""
    return Path(run, CURATED)


def previous_runs_directory(run: str | Path) -> Path:
    """Where `--overwrite` moves the earlier runs of a directory: beside it, so that an upload does not include them."""
    resolved = Path(run).resolve()
    return resolved.with_name(f"{resolved.name}.previous")


def run_of(path: str | Path) -> Path:
    """The run's directory, given it, one of its checkpoints, or its evaluation."""
    path = Path(path)
    inside = path.name in (EVALUATION, CURATED) or is_checkpoint_name(path.name)
    return path.parent if inside else path


def is_checkpoint_name(name: str) -> bool:
    return re.fullmatch(r"checkpoint-\d+", name) is not None


def checkpoint_step(path: str | Path) -> int:
    """The optimizer step of a directory named checkpoint-N."""
    return int(Path(path).name.rpartition("-")[2])


def checkpoint_paths(run: str | Path) -> list[Path]:
    """The directories checkpoint-N of a run, highest step first, complete or not."""
    found = [path for path in Path(run).glob("checkpoint-*") if is_checkpoint_name(path.name) and path.is_dir()]
    return sorted(found, key=checkpoint_step, reverse=True)
