"""Checkpoints that are complete or ignored, and that name the run that wrote them.

    OUTPUT_DIR/run.json               the run that trains here now: its id and what determines its trajectory
    OUTPUT_DIR/checkpoint-N/
        run.json                      the same for this checkpoint; written first
        …                             what transformers saves
        complete.json                 the seal: size and digest of every file; written last

A checkpoint without run.json was written by another trainer, such as TRL's own. It counts as complete when
trainer_state.json exists, which Trainer writes last.
"""

import errno
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.utils import logging

from qsft import sealed_directory
from qsft.directory_lock import hold_directory
from qsft.files import DiskFullError, nearest_directory, read_json, write_json
from qsft.run_directory import (
    CHECKPOINT_SEAL,
    LAST,
    RUN_RECORD,
    TRAINER_STATE,
    checkpoint_paths,
    checkpoint_step,
    previous_runs_directory,
)

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A directory checkpoint-N of a run."""

    path: Path

    @property
    def step(self) -> int:
        return checkpoint_step(self.path)

    @property
    def record(self) -> dict[str, Any]:
        """What was written at the start of the save; empty for a checkpoint of another trainer."""
        file = self.path / RUN_RECORD
        if not file.is_file():
            return {}
        return read_json(file, "Resume from another checkpoint.")

    @property
    def run_id(self) -> str | None:
        """The id of the run that wrote it; None for another trainer's checkpoint or a damaged record."""
        try:
            return self.record.get("id")
        except ValueError:
            return None

    def begin(self, record: dict[str, Any]) -> None:
        """Start a save: from now until `seal` the checkpoint is incomplete, whatever the directory held before."""
        (self.path / CHECKPOINT_SEAL).unlink(missing_ok=True)
        write_json(self.path / RUN_RECORD, record)

    def seal(self, *, digests: bool = True) -> None:
        """Mark the save as complete, after every process has written its files."""
        sealed_directory.seal(self.path, CHECKPOINT_SEAL, {"run": self.run_id, "step": self.step}, digests=digests)

    def problems(self, *, digests: bool = True) -> list[str]:
        """Describe what prevents a resume from this checkpoint; empty for a complete one.

        Args:
            digests: whether to read every byte and compare digests, or only sizes.
        """
        if not self.path.is_dir():
            return ["the directory does not exist"]
        if (self.path / CHECKPOINT_SEAL).is_file():
            return sealed_directory.find_damage(self.path, CHECKPOINT_SEAL, digests=digests)
        by_another_trainer = (self.path / TRAINER_STATE).is_file() and not (self.path / RUN_RECORD).is_file()
        return [] if by_another_trainer else ["the save is incomplete"]


def list_checkpoints(output_dir: str | Path) -> list[Checkpoint]:
    """The checkpoints of an output directory, highest step first, complete or not."""
    return [Checkpoint(path) for path in checkpoint_paths(output_dir)]


def read_run_record(output_dir: str | Path) -> dict[str, Any] | None:
    """The content of run.json in `output_dir`; None without that file."""
    file = Path(output_dir, RUN_RECORD)
    if not file.is_file():
        return None
    return read_json(file, "Name the checkpoint to resume from instead of 'last'.")


def resolve_checkpoint(output_dir: str | Path, requested: str | None) -> str | None:
    """The checkpoint to resume from: `requested`, or for "last" the newest complete one of the run in `output_dir`.

    Raises:
        ValueError: "last" was requested and the run has no complete checkpoint.
    """
    if requested != LAST:
        return requested
    run = read_run_record(output_dir) or {}
    candidates = list_checkpoints(output_dir)
    # A run that continued another run's checkpoint and has not saved one of its own yet resumes from there again.
    parent = (run.get("parent") or {}).get("checkpoint")
    if parent:
        candidates.append(Checkpoint(Path(parent)))
    skipped = []
    for checkpoint in candidates:
        problems = checkpoint.problems(digests=False)
        is_parent = parent is not None and checkpoint.path == Path(parent)
        if not problems and run and not is_parent and checkpoint.run_id != run.get("id"):
            problems = [f"it belongs to another run ({checkpoint.run_id or 'unknown id'})"]
        if problems:
            skipped.append(f"{checkpoint.path.name}: {problems[0]}")
            continue
        if skipped:
            logger.warning(f"resuming from {checkpoint.path}; skipped {', '.join(skipped)}.")
        return str(checkpoint.path)
    details = f" (skipped {', '.join(skipped)})" if skipped else ""
    raise ValueError(
        f"{output_dir} has no complete checkpoint of this run to resume from{details}. Start a new run in another "
        "output_dir (or with --overwrite), or name a checkpoint: --resume_from_checkpoint DIRECTORY."
    )


def check_complete(checkpoint: Path, *, digests: bool = True) -> None:
    """Raise ValueError when a checkpoint is incomplete or damaged; the message names the newest complete one."""
    problems = Checkpoint(checkpoint).problems(digests=digests)
    if not problems:
        return
    run_id = Checkpoint(checkpoint).run_id
    remedy = "No other checkpoint of the run is complete: start a new run."
    for other in list_checkpoints(checkpoint.parent):
        same_run = run_id is None or other.run_id == run_id
        if other.path.resolve() != checkpoint.resolve() and same_run and not other.problems(digests=digests):
            remedy = f"Resume from {other.path} instead."
            break
    raise ValueError(f"cannot resume from {checkpoint}: {'; '.join(problems)}. {remedy}")


def describe_existing_run(output_dir: str | Path, *, from_script: bool = False) -> str | None:
    """A message for a new run whose output directory already has checkpoints; None when it has none.

    Args:
        from_script: whether the reader called the trainer in Python, which has no options.
    """
    names = [checkpoint.path.name for checkpoint in list_checkpoints(output_dir)]
    if not names:
        return None
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    problem = f"{output_dir} has checkpoints of another run ({shown}). "
    if from_script:
        return problem + (
            "This run adds its own to the same directory. To continue the earlier run call "
            "trainer.train(resume_from_checkpoint=True); to keep both apart choose another output_dir."
        )
    return problem + (
        "A new run would mix both in one directory. Resume with --resume_from_checkpoint last, choose another "
        "--output_dir, or pass --overwrite, which moves the old "
        f"run to {previous_runs_directory(output_dir)} and deletes nothing."
    )


def hold_run_directory(output_dir: Path) -> AbstractContextManager[None]:
    """A context in which no other process trains in `output_dir`; ValueError when one does."""
    return hold_directory(output_dir, "Wait for the other run or end it, or choose another output_dir.")


def move_previous_run(output_dir: str | Path) -> Path | None:
    """Move the content of an output directory with checkpoints to a directory of OUTPUT_DIR.previous; return that one.

    None without checkpoints, when nothing is moved. A new run can then start in the output directory without being
    mistaken for the old one. Call it from one process.
    """
    if not list_checkpoints(output_dir):
        return None
    run_id = (read_run_record(output_dir) or {}).get("id") or "unknown"
    home = previous_runs_directory(output_dir)
    destination = home / run_id
    number = 1
    while destination.exists():
        number += 1
        destination = home / f"{run_id}-{number}"
    destination.mkdir(parents=True)
    for path in sorted(Path(output_dir).iterdir()):
        path.rename(destination / path.name)
    return destination


def rotate_checkpoints(output_dir: str | Path, run_id: str, limit: int | None, best: str | None) -> None:
    """Delete the run's oldest checkpoints by step number until `limit` are left, never the newest or the best.

    Trainer rotates by modification time, and a clock that was set back makes the newest checkpoint look oldest.
    """
    if limit is None or limit <= 0:
        return
    own = [checkpoint for checkpoint in list_checkpoints(output_dir) if checkpoint.run_id == run_id]
    protected = {own[0].path.resolve()} if own else set()
    if best is not None:
        protected.add(Path(best).resolve())
    excess = len(own) - max(limit, len(protected))
    for checkpoint in reversed(own):
        if excess <= 0:
            break
        if checkpoint.path.resolve() not in protected:
            shutil.rmtree(checkpoint.path, ignore_errors=True)
            excess -= 1


@contextmanager
def full_disk_explained(checkpoint: Checkpoint, run_id: str) -> Iterator[None]:
    """Replace the error of a save on a full disk by one that says what was needed, and what is left to resume from."""
    run_directory = checkpoint.path.parent
    free = shutil.disk_usage(nearest_directory(run_directory)).free
    try:
        yield
    except Exception as error:
        if not _is_full_disk(error):
            raise
        raise DiskFullError(_describe_full_disk(checkpoint, run_id, free)) from error


def _is_full_disk(error: Exception) -> bool:
    """Whether a save failed because there was no space; torch and safetensors raise errors of their own."""
    if isinstance(error, DiskFullError):
        return True
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # torch's zip writer reports a full disk as a failed assertion of inline_container.cc.
    return any(part in str(error) for part in ("No space left", "os error 28", "inline_container"))


def _describe_full_disk(checkpoint: Checkpoint, run_id: str, free: int) -> str:
    previous = None
    for other in list_checkpoints(checkpoint.path.parent):
        if other.path != checkpoint.path and other.run_id == run_id and not other.problems(digests=False):
            previous = other
            break
    could_not = f"the disk is full: {checkpoint.path} could not be saved"
    were_free = f"{free / 1e6:.1f} MB were free when the save began"
    if previous is None:
        return (
            f"{could_not}. {were_free}, which is less than a checkpoint takes. The run has no complete checkpoint yet: "
            "free some space and start it again."
        )
    size = sum(file.stat().st_size for file in previous.path.rglob("*") if file.is_file())
    return (
        f"{could_not}. {were_free}, and a checkpoint takes about {size / 1e6:.1f} MB. {previous.path} is intact: free "
        "some space and resume with resume_from_checkpoint='last'."
    )
