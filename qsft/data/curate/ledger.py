"""What was computed so far, on disk: append-only JSON lines, one per (problem, sample), shared by all processes.

Process 0 appends to <stage>.jsonl, process r to <stage>.rank<r>.jsonl, so no two write one file; a finished stage is
one file in the order it was asked for, whatever was killed and however many processes there were.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from qsft.jsonl import cut_torn_line, read_lines, write_line, write_lines

Key = tuple[str, int]  # problem, sample
Record = dict[str, Any]  # problem, sample, tokens (generated or read), perhaps right, and what the stage adds


class Group(Protocol):
    """The processes that share the work."""

    rank: int
    count: int

    def wait(self) -> None:
        """Wait until every process has come here."""
        ...


class Shown(Protocol):
    """A line that says how far a stage is."""

    grades: list[bool]

    def add(self, tokens: int) -> None:
        """One more record of so many tokens."""
        ...


Progress = Callable[[str, int, int], AbstractContextManager[Shown]]  # stage, records in all, records there already


class Ledger:
    """The records of a run's stages in a directory; `fill` computes what is missing of one."""

    def __init__(self, directory: Path, group: Group, progress: Progress) -> None:
        self.directory, self.group, self.progress = directory, group, progress

    def fill(self, stage: str, keys: Sequence[Key], make: Callable[[list[Key]], Iterable[Record]]) -> dict[Key, Record]:
        """The records of `keys`, in that order; `make` yields those of the keys that this process has to compute."""
        if self.group.rank == 0:
            for path in self._parts(stage):
                cut_torn_line(path)
        self.group.wait()
        done = self._read(stage)
        self.group.wait()  # nobody appends while another still reads
        mine = self._share(keys)
        missing = [key for key in mine if key not in done]
        if missing:
            with self.progress(stage, len(mine), len(mine) - len(missing)) as shown:
                self._append(stage, make(missing), shown)
        self.group.wait()
        if self.group.rank == 0:
            self._settle(stage, keys)
        self.group.wait()
        found = self._read(stage)
        return {key: found[key] for key in keys}

    def remove(self) -> None:
        """Forget everything."""
        for path in self.directory.glob("*.jsonl"):
            path.unlink()

    def _share(self, keys: Sequence[Key]) -> list[Key]:
        """The keys of every count-th problem: a problem's samples share its prompt, so one process draws them."""
        turn = {problem: at for at, problem in enumerate(dict.fromkeys(problem for problem, _ in keys))}
        return [key for key in keys if turn[key[0]] % self.group.count == self.group.rank]

    def _append(self, stage: str, records: Iterable[Record], shown: Shown) -> None:
        path = self._path(stage, self.group.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for record in records:
                write_line(file, record)
                if "right" in record:
                    shown.grades.append(record["right"])
                shown.add(record["tokens"])

    def _settle(self, stage: str, keys: Sequence[Key]) -> None:
        """Make one file of all parts, in the order of `keys`."""
        found, parts = self._read(stage), self._parts(stage)
        write_lines(self._path(stage, 0), (found[key] for key in keys))
        for part in parts:
            if part != self._path(stage, 0):
                part.unlink()

    def _read(self, stage: str) -> dict[Key, Record]:
        return {(record["problem"], record["sample"]): record for record in self._lines(stage)}

    def _lines(self, stage: str) -> Iterator[Record]:
        for path in self._parts(stage):
            yield from read_lines(path, "Delete the line (it is computed again), or start with --fresh.")

    def _path(self, stage: str, rank: int) -> Path:
        return self.directory / (f"{stage}.rank{rank}.jsonl" if rank else f"{stage}.jsonl")

    def _parts(self, stage: str) -> list[Path]:
        others = sorted(self.directory.glob(f"{stage}.rank*.jsonl"))
        return [path for path in [self._path(stage, 0), *others] if path.is_file()]
