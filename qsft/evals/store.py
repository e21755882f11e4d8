"""Generations and settings on disk: append-only JSON lines keyed by (problem, sample), whole lines or none.

Process 0 appends to generations/<task>.jsonl, process r to generations/<task>.rank<r>.jsonl, so no two write one file;
a finished task is one file in the problems' order, whatever was killed or how many processes there were.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qsft.evals.grade import Grade
from qsft.evals.request import Generation
from qsft.jsonl import cut_torn_line, read_lines, write_json, write_line, write_lines

Key = tuple[str, int]
REMEDY = "Delete the line (it is sampled again), or start with --fresh."


class Store:
    """A run's directory. With `directory=None` everything stays in memory."""

    def __init__(self, directory: str | Path | None, rank: int = 0) -> None:
        self.directory, self.rank = None if directory is None else Path(directory), rank
        self._memory: dict[str, dict[Key, Generation]] = {}

    def generations(self, task: str) -> dict[Key, Generation]:
        """What was generated so far, by every process."""
        if self.directory is None:
            return dict(self._memory.get(task, {}))
        found: dict[Key, Generation] = {}
        for path in self._parts(task):
            for row in map(with_problem, read_lines(path, REMEDY)):
                found[row["problem"], row["sample"]] = Generation(**row)
        return found

    def holds(self, task: str) -> bool:
        """Whether there are generations of a task on disk."""
        return any(path.stat().st_size for path in self._parts(task))

    def repair(self, task: str) -> None:
        """Cut off what a kill left behind the last whole line of each file."""
        for path in self._parts(task):
            cut_torn_line(path)

    def append(self, task: str, generations: Iterable[Generation]) -> Iterator[Generation]:
        """Pass the generations on, each written before it is passed."""
        if self.directory is None:
            for generation in generations:
                self._memory.setdefault(task, {})[generation.problem, generation.sample] = generation
                yield generation
            return
        path = self._path(task, self.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for generation in generations:
                write_line(file, asdict(generation))
                yield generation

    def finish(self, task: str, keys: Sequence[Key]) -> list[Generation]:
        """The task's generations in the order of `keys`; on disk they become one file in that order."""
        found = self.generations(task)
        missing = [key for key in keys if key not in found]
        if missing:
            raise ValueError(
                f"task {task!r} has {len(keys) - len(missing)} of {len(keys)} samples in {self.directory}; problem "
                f"{missing[0][0]}, sample {missing[0][1]} is missing. Run the same command without --rescore to finish."
            )
        generations = [found[key] for key in keys]
        if self.directory is not None:
            parts = self._parts(task)
            write_lines(self._path(task, 0), map(asdict, generations))
            for part in parts:
                if part != self._path(task, 0):
                    part.unlink()
        return generations

    def remove(self, task: str) -> None:
        """Forget a task's generations."""
        for part in self._parts(task):
            part.unlink()

    def write_grades(self, task: str, generations: Sequence[Generation], grades: Sequence[Grade]) -> None:
        """The grades beside the generations: grades/<task>.jsonl."""
        if self.directory is not None:
            rows = (
                {"problem": one.problem, "sample": one.sample, **asdict(grade)}
                for one, grade in zip(generations, grades, strict=True)
            )
            write_lines(self.directory / "grades" / f"{task}.jsonl", rows)

    def settings(self) -> dict[str, Any]:
        """The settings each task was sampled with."""
        path = self.directory / "settings.json" if self.directory is not None else None
        return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a JSON file whole or not at all."""
        if self.directory is not None:
            write_json(self.directory / name, content)

    def _path(self, task: str, rank: int) -> Path:
        assert self.directory is not None
        return self.directory / "generations" / (f"{task}.rank{rank}.jsonl" if rank else f"{task}.jsonl")

    def _parts(self, task: str) -> list[Path]:
        if self.directory is None:
            return []
        first = self._path(task, 0)
        return [path for path in [first, *sorted(first.parent.glob(f"{task}.rank*.jsonl"))] if path.is_file()]


def with_problem(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of generations or grades; 0.1.0 called a problem a document there."""
    return {"problem" if key == "document" else key: value for key, value in row.items()}
