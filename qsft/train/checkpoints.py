"""Checkpoints that are whole or ignored, and that know whose they are.

OUTPUT_DIR/run.json               the run that trains here now: its id and what decides its trajectory
OUTPUT_DIR/checkpoint-N/
    target.json                   written first: the same, as it was for this checkpoint
    …                             what transformers saves
    whole.json                    published last: size and digest of every file; without it the save was cut short

A checkpoint without target.json, or with one that names no run, was written by TRL or an older qsft: it counts as whole
when trainer_state.json is there, which Trainer writes last.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qsft.files import TEMPORARY, read_json, write_json
from qsft.fingerprints import digest_json, file_digest

RUN, RECORD, MARKER, STATE = "run.json", "target.json", "whole.json", "trainer_state.json"
LAST = "last"
SET_ASIDE = "earlier"  # where --overwrite moves the checkpoints of earlier runs
DIGEST_THREADS = 8  # hashlib works without the interpreter's lock


@dataclass(frozen=True)
class Checkpoint:
    """A directory checkpoint-N of a run."""

    path: Path

    @property
    def step(self) -> int:
        return int(self.path.name.rpartition("-")[2])

    @property
    def record(self) -> dict[str, Any] | None:
        """What was written at the start of the save; None for a checkpoint of another trainer."""
        file = self.path / RECORD
        return read_json(file, "Resume from another checkpoint.") if file.is_file() else None

    @property
    def run(self) -> str | None:
        return (self.record or {}).get("run")

    def open(self, record: dict[str, Any]) -> None:
        """Begin a save: from now on and until `seal` the checkpoint is not whole, whatever was there before."""
        (self.path / MARKER).unlink(missing_ok=True)
        write_json(self.path / RECORD, record)

    def seal(self, digests: bool = True) -> None:
        """Say that the save is complete, after every process has written its files."""
        files = [file for file in sorted(self.path.rglob("*")) if file.is_file() and not file.name.endswith(TEMPORARY)]
        names = [file.relative_to(self.path).as_posix() for file in files]
        found = _digests(files) if digests else [None] * len(files)
        entries = {
            name: {"bytes": file.stat().st_size, "digest": value} for name, file, value in zip(names, files, found)
        }
        content = {"run": self.run, "step": self.step, "files": entries}
        write_json(self.path / MARKER, content | {"checksum": digest_json(content)})

    def flaws(self, digests: bool = True) -> list[str]:
        """What is wrong with the files, in words; empty for a whole checkpoint. Digests read every byte."""
        if not (self.path / MARKER).is_file():
            if not self.path.is_dir():
                return ["there is no such directory"]
            if _named(self.path / RECORD, lambda: self.run) is not None or not (self.path / STATE).is_file():
                return ["its save was cut short"]
            return []  # of another trainer, which records no digests
        content = _named(self.path / MARKER, lambda: read_json(self.path / MARKER, "")) or {}
        if content.pop("checksum", None) != digest_json(content):
            return [f"{MARKER} is damaged"]
        listed = content["files"]
        sizes = [flaw for name, entry in listed.items() if (flaw := _size_flaw(self.path / name, name, entry))]
        return sizes or (_digest_flaws(self.path, listed) if digests else [])


def checkpoints(output_dir: str | Path) -> list[Checkpoint]:
    """The directories checkpoint-N of an output directory, newest step first; whole or not."""
    found = [path for path in Path(output_dir).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((Checkpoint(path) for path in found if path.is_dir()), key=lambda one: -one.step)


def read_run(output_dir: str | Path) -> dict[str, Any] | None:
    """What OUTPUT_DIR/run.json says of the run that trains there; None where there is none."""
    file = Path(output_dir, RUN)
    return read_json(file, "Name the checkpoint to resume from instead of 'last'.") if file.is_file() else None


def resolve_checkpoint(output_dir: str | Path, asked: str | None) -> str | None:
    """The checkpoint to resume from: `asked`, or for "last" the newest whole one of the run in `output_dir`.

    What is passed over is named in the log; a ValueError says why when nothing is left.
    """
    if asked != LAST:
        return asked
    skipped, run = [], read_run(output_dir)
    for one in checkpoints(output_dir):
        flaws = one.flaws(digests=False)
        if flaws:
            skipped.append(f"{one.path.name}: {flaws[0]}")
        elif run is not None and one.run != run.get("id"):
            skipped.append(f"{one.path.name}: it belongs to another run ({one.run or 'of unknown id'})")
        else:
            _log_skipped(output_dir, skipped)
            return str(one.path)
    started_from = ((run or {}).get("parent") or {}).get("checkpoint")
    if started_from and not Checkpoint(Path(started_from)).flaws(digests=False):
        _log_skipped(output_dir, skipped)
        return str(started_from)
    raise ValueError(
        f"there is no whole checkpoint of this run in {output_dir} to resume from{_listed(skipped)}. Start anew in "
        "another output_dir (or with --overwrite), or name a checkpoint: --resume_from_checkpoint DIRECTORY."
    )


def refuse_other_run(output_dir: str | Path) -> None:
    """ValueError when a run that starts anew would mix its checkpoints with those that are there."""
    there = checkpoints(output_dir)
    if there:
        raise ValueError(f"{_inhabited(there)} Starting anew would mix two runs in one directory. {_WAYS_OUT}")


def set_aside(output_dir: str | Path) -> Path | None:
    """Rename the checkpoints that are there, so that a new run can start; nothing is deleted. Where they are now.

    For one process; the others wait.
    """
    there = checkpoints(output_dir)
    if not there:
        return None
    name = (read_run(output_dir) or {}).get("id") or "unknown"
    taken = (Path(output_dir, SET_ASIDE, f"{name}.{n}" if n else name) for n in range(10**6))
    place = next(path for path in taken if not path.exists())
    place.mkdir(parents=True)
    for one in there:
        one.path.rename(place / one.path.name)
    if Path(output_dir, RUN).is_file():
        Path(output_dir, RUN).rename(place / RUN)
    return place


def refuse_damaged(checkpoint: Path, digests: bool = True) -> None:
    """ValueError that names what is damaged, and the newest checkpoint beside it that is whole."""
    flaws = Checkpoint(checkpoint).flaws(digests)
    if not flaws:
        return
    beside = [one for one in _of_same_run(checkpoint) if one.path.resolve() != checkpoint.resolve()]
    sound = next((one.path for one in beside if not one.flaws(digests)), None)
    instead = f"Resume from {sound} instead." if sound else "No other checkpoint of the run is whole: start anew."
    raise ValueError(f"{checkpoint} cannot be resumed from: {'; '.join(flaws)}. {instead}")


def warn_of_other_run(output_dir: str | Path) -> str | None:
    """What the bare trainer says when it starts anew where checkpoints are."""
    there = checkpoints(output_dir)
    return f"{_inhabited(there)} This run starts anew beside them and may replace them. {_WAYS_OUT}" if there else None


_WAYS_OUT = (
    "Resume with --resume_from_checkpoint last, choose another --output_dir, or pass --overwrite, which moves the old "
    f"checkpoints to {SET_ASIDE}/ and deletes nothing."
)


def _inhabited(there: list[Checkpoint]) -> str:
    names = ", ".join(one.path.name for one in there[:3]) + (", …" if len(there) > 3 else "")
    return f"{there[0].path.parent} holds checkpoints of another run ({names})."


def _of_same_run(checkpoint: Path) -> Iterator[Checkpoint]:
    run = _named(checkpoint / RECORD, lambda: Checkpoint(checkpoint).run)
    for one in checkpoints(checkpoint.parent):
        if run is None or _named(one.path / RECORD, lambda one=one: one.run) == run:
            yield one


def _named(file: Path, read: Any) -> Any:
    """What `read` makes of a file; None where it is missing or damaged."""
    try:
        return read() if file.is_file() else None
    except (ValueError, KeyError, AttributeError):
        return None


def _size_flaw(file: Path, name: str, entry: dict[str, Any]) -> str | None:
    if not file.is_file():
        return f"{name} is missing"
    size = file.stat().st_size
    return None if size == entry.get("bytes") else f"{name} has {size} bytes instead of {entry.get('bytes')}"


def _digest_flaws(directory: Path, listed: dict[str, dict[str, Any]]) -> list[str]:
    known = {name: entry["digest"] for name, entry in listed.items() if entry.get("digest") is not None}
    found = _digests([directory / name for name in known])
    return [f"{name} was altered after it was saved" for name, value in zip(known, found) if value != known[name]]


def _digests(files: list[Path]) -> list[str]:
    with ThreadPoolExecutor(DIGEST_THREADS) as pool:
        return list(pool.map(file_digest, files))


def _log_skipped(output_dir: str | Path, skipped: list[str]) -> None:
    from transformers.utils import logging

    if skipped:
        logging.get_logger(__name__).warning(f"resuming in {output_dir}{_listed(skipped)}.")


def _listed(skipped: list[str]) -> str:
    return f"; passed over: {', '.join(skipped)}" if skipped else ""
