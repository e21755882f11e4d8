"""One resumable ledger: what was computed so far, as append-only JSON lines keyed by (problem, sample).

Process 0 appends to <stage>.jsonl, process r to <stage>.rank<r>.jsonl, so no two write one file; a settled stage is one
file in the order it was asked for, whatever was killed and however many processes there were.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from qsft.files import cut_torn_line, read_lines, shown, write_line, write_lines
from qsft.processes import Group

Key = tuple[str, int]  # problem, sample
Record = dict[str, Any]  # problem, sample, and what the stage adds
REMEDY = "Delete the line (it is computed again), or start with --fresh."


class Ledger:
    """The records of a run's stages in a directory."""

    def __init__(self, directory: Path, group: Group | None = None, *, remedy: str = REMEDY) -> None:
        self.directory, self.group, self.remedy = directory, group or Group(), remedy

    def read(self, stage: str) -> dict[Key, Record]:
        """What every process has computed so far."""
        lines = (line for path in self._parts(stage) for line in read_lines(path, remedy=self.remedy))
        return {key_of(record, self._path(stage, 0), self.remedy): record for record in lines}

    def append(self, stage: str, records: Iterable[Record]) -> Iterator[Record]:
        """Pass the records on, each written before it is passed."""
        path = self._path(stage, self.group.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for record in records:
                write_line(file, record)
                yield record

    def fill(
        self,
        stage: str,
        keys: Sequence[Key],
        make: Callable[[list[Key]], Iterable[Record]],
        watch: Callable[[Record], object] | None = None,
    ) -> dict[Key, Record]:
        """The records of `keys` in order; `make` yields those this process has to compute, `watch` sees each after."""
        if self.group.rank == 0:
            self.repair(stage)
        self.group.wait()
        done = self.read(stage)
        self.group.wait()  # nobody appends while another still reads
        missing = [key for key in self.share(keys) if key not in done]
        for record in self.append(stage, make(missing)) if missing else ():
            if watch is not None:
                watch(record)
        self.group.wait()
        if self.group.rank == 0:
            self.settle(stage, keys)
        self.group.wait()
        found = self.read(stage)
        return {key: found[key] for key in keys}

    def share(self, keys: Sequence[Key]) -> list[Key]:
        """The keys of every count-th problem: a problem's samples share its prompt, so one process draws them."""
        turn = {problem: at for at, problem in enumerate(dict.fromkeys(problem for problem, _ in keys))}
        return [key for key in keys if turn[key[0]] % self.group.count == self.group.rank]

    def settle(self, stage: str, keys: Sequence[Key]) -> list[Record]:
        """The records of `keys` in their order; on disk they become one file in that order."""
        found, parts = self.read(stage), self._parts(stage)
        missing = [key for key in keys if key not in found]
        if missing:
            raise ValueError(
                f"{stage!r} has {len(keys) - len(missing)} of {len(keys)} samples in {shown(self.directory)}; problem "
                f"{missing[0][0]}, sample {missing[0][1]} is missing. Rerun the command that began it: it continues."
            )
        records = [found[key] for key in keys]
        write_lines(self._path(stage, 0), records)
        for part in parts:
            if part != self._path(stage, 0):
                part.unlink()
        return records

    def holds(self, stage: str) -> bool:
        return any(path.stat().st_size for path in self._parts(stage))

    def repair(self, stage: str) -> None:
        """Cut off what a kill left behind the last whole line of each file."""
        for path in self._parts(stage):
            cut_torn_line(path)

    def remove(self, stage: str) -> None:
        for part in self._parts(stage):
            part.unlink()

    def _path(self, stage: str, rank: int) -> Path:
        return self.directory / (f"{stage}.rank{rank}.jsonl" if rank else f"{stage}.jsonl")

    def _parts(self, stage: str) -> list[Path]:
        """The files of a stage, that of process 0 first."""
        check_stage(stage)
        if not self.directory.is_dir():
            return []
        part = re.compile(rf"{re.escape(stage)}(\.rank(\d+))?\.jsonl")
        found = {int(name[2] or 0): path for path in self.directory.iterdir() if (name := part.fullmatch(path.name))}
        return [found[rank] for rank in sorted(found)]


def key_of(record: Record, file: Path, remedy: str = REMEDY) -> Key:
    """What a record is about; files of version 0.1 call the problem a document."""
    try:
        return record["problem"] if "problem" in record else record["document"], record["sample"]
    except KeyError as error:
        raise ValueError(f"{file}: a record has no {error.args[0]!r}. {remedy}") from error


def check_stage(name: str) -> None:
    """Refuse a name that would leave the directory, or be taken for another stage's part."""
    if not re.fullmatch(r"[^/\\\0\n]+", name) or name.startswith(".") or re.search(r"\.rank\d+$", name):
        raise ValueError(f"{name!r} cannot name a file of results: it has a slash, a first dot or '.rank1' at its end.")
