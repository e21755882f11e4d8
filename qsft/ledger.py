"""Resumable work: records as append-only JSON lines keyed by (problem, sample), and the settings that made them.

Process 0 appends to <stage>.jsonl and process r to <stage>.rank<r>.jsonl, so no two processes write one file. A settled
stage is one file in the order of its keys, whatever was killed and however many processes there were. Every line
carries a digest of itself, so that damage is noticed.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from qsft.directory_lock import hold_directory
from qsft.files import read_lines, remove_incomplete_line, shown, write_line, write_lines
from qsft.fingerprints import digest_json
from qsft.processes import Group
from qsft.run_directory import previous_runs_directory

Key = tuple[str, int]  # problem, sample
Record = dict[str, Any]  # problem, sample, and what the stage adds
Observer = Callable[[Record], object]

DIGEST = "check"  # the field of a record that holds its digest
ALREADY_RUNNING = "Wait for the other command or end it, then rerun this one: it continues."
REMEDY = "Delete the line (it is computed again), or start again with --overwrite."


class Ledger:
    """The records of a run's stages in a directory."""

    def __init__(self, directory: Path, group: Group | None = None, *, remedy: str = REMEDY) -> None:
        self.directory = directory
        self.group = group or Group()
        self.remedy = remedy

    def read(self, stage: str) -> dict[Key, Record]:
        """The records that all processes have computed so far, by key."""
        records: dict[Key, Record] = {}
        for path in self.files(stage):
            for record in read_sealed_lines(path, remedy=self.remedy):
                records[key_of(record, path, self.remedy)] = record
        return records

    def append(self, stage: str, records: Iterable[Record]) -> Iterator[Record]:
        """Yield the records, each written before it is yielded."""
        path = self._path(stage, self.group.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            for record in records:
                sealed = seal(record)
                write_line(file, sealed)
                yield sealed

    def fill(
        self,
        stage: str,
        keys: Sequence[Key],
        make: Callable[[list[Key]], Iterable[Record]],
        *,
        on_existing: Observer | None = None,
        on_new: Observer | None = None,
    ) -> dict[Key, Record]:
        """The records of `keys` in their order; those that exist are kept, and the missing ones are computed.

        Args:
            make: yields the records of the keys that this process has to compute.
            on_existing: called with each record of this process's share that existed before.
            on_new: called with each new record, after it was written.

        Raises:
            ValueError: another command fills a stage in this directory.
        """
        with ExitStack() as held:
            if self.group.rank == 0:
                held.enter_context(hold_directory(self.directory, ALREADY_RUNNING))
            return self._fill(stage, keys, make, on_existing, on_new)

    def _fill(
        self,
        stage: str,
        keys: Sequence[Key],
        make: Callable[[list[Key]], Iterable[Record]],
        on_existing: Observer | None,
        on_new: Observer | None,
    ) -> dict[Key, Record]:
        if self.group.rank == 0:
            self.repair(stage)
        self.group.wait()
        existing = self.read(stage)
        self.group.wait()  # no process appends while another one still reads
        share = self.share(keys)
        if on_existing is not None:
            for key in share:
                if key in existing:
                    on_existing(existing[key])
        missing = [key for key in share if key not in existing]
        if missing:
            for record in self.append(stage, make(missing)):
                if on_new is not None:
                    on_new(record)
        self.group.wait()
        if self.group.rank == 0:
            self.settle(stage, keys)
        self.group.wait()
        records = self.read(stage)
        return {key: records[key] for key in keys}

    def share(self, keys: Sequence[Key]) -> list[Key]:
        """The keys of this process: every count-th problem with all its samples, since they share a prompt."""
        problems = dict.fromkeys(problem for problem, _ in keys)
        mine = set(list(problems)[self.group.rank :: self.group.count])
        return [key for key in keys if key[0] in mine]

    def settle(self, stage: str, keys: Sequence[Key]) -> list[Record]:
        """The records of `keys` in their order; on disk they become one file in that order.

        Raises:
            ValueError: if a record is missing.
        """
        found = self.read(stage)
        parts = self.files(stage)
        missing = [key for key in keys if key not in found]
        if missing:
            problem, sample = missing[0]
            raise ValueError(
                f"{stage!r} has {len(keys) - len(missing)} of {len(keys)} samples in {shown(self.directory)}; problem "
                f"{problem}, sample {sample} is missing. Rerun the command that started it: it continues."
            )
        records = [found[key] for key in keys]
        settled = self._path(stage, 0)
        write_lines(settled, records)
        for part in parts:
            if part != settled:
                part.unlink()
        return records

    def has_records(self, stage: str) -> bool:
        return any(path.stat().st_size for path in self.files(stage))

    def repair(self, stage: str) -> None:
        """Remove what a kill left behind the last complete line of each file."""
        for path in self.files(stage):
            remove_incomplete_line(path)

    def files(self, stage: str) -> list[Path]:
        """The files of a stage, that of process 0 first."""
        check_stage(stage)
        if not self.directory.is_dir():
            return []
        pattern = re.compile(rf"{re.escape(stage)}(\.rank(\d+))?\.jsonl")
        by_rank = {}
        for path in self.directory.iterdir():
            name = pattern.fullmatch(path.name)
            if name:
                by_rank[int(name[2] or 0)] = path
        return [by_rank[rank] for rank in sorted(by_rank)]

    def _path(self, stage: str, rank: int) -> Path:
        return self.directory / (f"{stage}.rank{rank}.jsonl" if rank else f"{stage}.jsonl")


def key_of(record: Record, file: Path, remedy: str = REMEDY) -> Key:
    """The key of a record; ValueError names the file of one that has none."""
    try:
        return record["problem"], record["sample"]
    except KeyError as error:
        raise ValueError(f"{shown(file)}: a record has no {error.args[0]!r}. {remedy}") from error


def check_stage(name: str) -> None:
    """Raise ValueError for a name that would leave the directory, or that looks like another stage's part."""
    if not re.fullmatch(r"[^/\\\0\n]+", name) or name.startswith(".") or re.search(r"\.rank\d+$", name):
        raise ValueError(
            f"{name!r} cannot name a file of results: a name has no slash, no dot at its start and no '.rank1' at its "
            "end."
        )


# ---- digests of records ----


def seal(record: Mapping[str, Any]) -> Record:
    """The record with a digest of its content."""
    content = {key: value for key, value in record.items() if key != DIGEST}
    return {**content, DIGEST: digest_json(content)}


def is_intact(record: Mapping[str, Any]) -> bool:
    """Whether a record is as `seal` made it."""
    return record.get(DIGEST) == seal(record)[DIGEST]


def read_sealed_lines(path: Path, *, remedy: str) -> Iterator[Record]:
    """The records of a JSONL file; ValueError names the first damaged one."""
    for number, record in enumerate(read_lines(path, remedy=remedy), start=1):
        if not is_intact(record):
            raise ValueError(f"{shown(path)}: record {number} is damaged: its digest does not match. {remedy}")
        yield record


def write_sealed_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    write_lines(path, map(seal, records))


# ---- settings of earlier work ----

SETTINGS = "settings.json"  # the file of a directory that holds the settings that made its records


def changed_settings(
    recorded: Mapping[str, Any], requested: Mapping[str, Any], *, allowed: Collection[str] = ()
) -> list[str]:
    """A phrase for every requested setting that differs from the recorded one: "seed was 0, is 1".

    Args:
        allowed: settings that may differ.
    """
    differing = [key for key in requested if key not in allowed and recorded.get(key) != requested[key]]
    return [f"{key} was {recorded.get(key)!r}, is {requested[key]!r}" for key in differing]


def move_aside(directory: Path, paths: Iterable[Path]) -> Path | None:
    """Move files and subdirectories of a directory into a numbered one of DIRECTORY.previous; where they are now."""
    existing = [path for path in paths if path.exists()]
    if not existing:
        return None
    home = previous_runs_directory(directory)
    number = 1
    while (home / str(number)).exists():
        number += 1
    destination = home / str(number)
    for path in existing:
        target = destination / path.relative_to(directory)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    return destination
