"""Checkpoints that are whole or ignored, and that know whose they are.

OUTPUT_DIR/run.json               the run that trains here now: its id and what decides its trajectory
OUTPUT_DIR/checkpoint-N/
    target.json                   written first: the same, as it was for this checkpoint
    …                             what transformers saves
    whole.json                    published last: size and digest of every file; without it the save was cut short

A checkpoint without target.json, or with one that names no run, was written by TRL or version 0.1: it counts as whole
when trainer_state.json is there, which Trainer writes last.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qsft.files import TEMPORARY, read_json, write_json
from qsft.fingerprints import digest_json, file_digest

RUN, RECORD, MARKER, STATE = "run.json", "target.json", "whole.json", "trainer_state.json"
LAST = "last"
SET_ASIDE = "earlier"  # where --overwrite moves the checkpoints of earlier runs


@dataclass(frozen=True)
class Checkpoint:
    """A directory checkpoint-N of a run."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.rpartition("-")[2])

    @property
    def record(self) -> dict[str, Any]:
        """What was written at the start of the save; empty for a checkpoint of another trainer."""
        file = self.path / RECORD
        return read_json(file, "Resume from another checkpoint.") if file.is_file() else {}

    @property
    def run(self) -> str | None:
        try:
            return self.record.get("run")
        except ValueError:  # damaged
            return None

    def open(self, record: dict[str, Any]) -> None:
        """Begin a save: from now on and until `seal` the checkpoint is not whole, whatever was there before."""
        (self.path / MARKER).unlink(missing_ok=True)
        write_json(self.path / RECORD, record)

    def seal(self, digests: bool = True) -> None:
        """Say that the save is complete, after every process has written its files."""
        content = {"run": self.run, "step": self.step, "files": self._files(digests)}
        write_json(self.path / MARKER, content | {"checksum": digest_json(content)})

    def _files(self, digests: bool) -> dict[str, dict[str, Any]]:
        files = [file for file in sorted(self.path.rglob("*")) if file.is_file() and not file.name.endswith(TEMPORARY)]
        found = _digests(files) if digests else [None] * len(files)
        sizes = [{"bytes": file.stat().st_size, "digest": value} for file, value in zip(files, found)]
        return {file.relative_to(self.path).as_posix(): entry for file, entry in zip(files, sizes)}

    def flaws(self, digests: bool = True) -> list[str]:
        """What is wrong with the files, in words; empty for a whole checkpoint. Digests read every byte."""
        if not self.path.is_dir():
            return ["there is no such directory"]
        if not (self.path / MARKER).is_file():
            of_another_trainer = (self.path / STATE).is_file() and self.run is None
            return [] if of_another_trainer else ["its save was cut short"]
        try:
            content = read_json(self.path / MARKER, "")
            sound = content.pop("checksum", None) == digest_json(content)
        except ValueError:
            sound = False
        if not sound:
            return [f"{MARKER} is damaged"]
        there, wrong = self._files(digests and all(e["digest"] for e in content["files"].values())), list[str]()
        for name, entry in content["files"].items():
            if name not in there:
                wrong.append(f"{name} is missing")
            elif there[name]["bytes"] != entry["bytes"]:
                wrong.append(f"{name} has {there[name]['bytes']} bytes instead of {entry['bytes']}")
            elif there[name]["digest"] not in (None, entry["digest"]):
                wrong.append(f"{name} was altered after it was saved")
        return wrong


def checkpoints(output_dir: str | Path) -> list[Checkpoint]:
    """The directories checkpoint-N of an output directory, newest step first; whole or not."""
    found = [path for path in Path(output_dir).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((Checkpoint(path) for path in found if path.is_dir()), key=lambda one: -one.step)


def read_run(output_dir: str | Path) -> dict[str, Any] | None:
    file = Path(output_dir, RUN)
    return read_json(file, "Name the checkpoint to resume from instead of 'last'.") if file.is_file() else None


def resolve_checkpoint(output_dir: str | Path, asked: str | None) -> str | None:
    """The checkpoint to resume from: `asked`, or for "last" the newest whole one of the run in `output_dir`."""
    if asked != LAST:
        return asked
    run, skipped = read_run(output_dir) or {}, list[str]()
    parent = (run.get("parent") or {}).get("checkpoint")  # where a run without checkpoints of its own began
    for one in [*checkpoints(output_dir), *([Checkpoint(Path(parent))] if parent else [])]:
        flaws = one.flaws(digests=False)
        if run and one.run != run.get("id") and not (parent and one.path == Path(parent)):
            flaws = flaws or [f"it belongs to another run ({one.run or 'of unknown id'})"]
        if not flaws:
            if skipped:
                from transformers.utils import logging

                logging.get_logger(__name__).warning(f"resuming in {output_dir}; passed over: {', '.join(skipped)}.")
            return str(one.path)
        skipped.append(f"{one.path.name}: {flaws[0]}")
    passed_over = f"; passed over: {', '.join(skipped)}" if skipped else ""
    raise ValueError(
        f"there is no whole checkpoint of this run in {output_dir} to resume from{passed_over}. Start anew in another "
        "output_dir (or with --overwrite), or name a checkpoint: --resume_from_checkpoint DIRECTORY."
    )


def inhabited(output_dir: str | Path) -> str | None:
    """What to say to a run that starts anew where checkpoints are; None where there are none."""
    there = [one.path.name for one in checkpoints(output_dir)]
    names = ", ".join([*there[:3], *(["…"] if len(there) > 3 else [])])
    told = (
        f"{output_dir} holds checkpoints of another run ({names}). Starting anew would mix two runs in one directory. "
        "Resume with --resume_from_checkpoint last, choose another --output_dir, or pass --overwrite, which moves the "
        f"old run to {SET_ASIDE}/ and deletes nothing."
    )
    return told if there else None


def set_aside(output_dir: str | Path) -> Path | None:
    """Move an earlier run's checkpoints, model, record and logs, so that a new one can start and, stopped, is not taken
    for it; nothing is deleted. Where they are now. For one process; the others wait.
    """
    there = checkpoints(output_dir)
    if not there:
        return None
    name = (read_run(output_dir) or {}).get("id") or "unknown"
    taken = (Path(output_dir, SET_ASIDE, f"{name}.{n}" if n else name) for n in range(10**6))
    place = next(path for path in taken if not path.exists())
    place.mkdir(parents=True)
    for path in [*(one.path for one in there), *filter(Path.is_file, Path(output_dir).iterdir())]:
        path.rename(place / path.name)
    return place


def refuse_damaged(checkpoint: Path, digests: bool = True) -> None:
    """ValueError that names what is damaged, and the newest checkpoint beside it that is whole."""
    flaws = Checkpoint(checkpoint).flaws(digests)
    if not flaws:
        return
    run = Checkpoint(checkpoint).run
    beside = [one for one in checkpoints(checkpoint.parent) if one.path.resolve() != checkpoint.resolve()]
    sound = next((one.path for one in beside if run in (None, one.run) and not one.flaws(digests)), None)
    instead = f"Resume from {sound} instead." if sound else "No other checkpoint of the run is whole: start anew."
    raise ValueError(f"{checkpoint} cannot be resumed from: {'; '.join(flaws)}. {instead}")


def _digests(files: list[Path]) -> list[str]:
    with ThreadPoolExecutor(8) as pool:  # hashlib works without the interpreter's lock
        return list(pool.map(file_digest, files))
