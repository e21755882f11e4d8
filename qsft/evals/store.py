"""Generations and settings on disk: append-only JSON lines keyed by (document, sample), whole lines or none.

Process 0 appends to generations/<task>.jsonl, process r to generations/<task>.rank<r>.jsonl, so no two write one file;
a finished task is one file in the documents' order, whatever was killed or how many processes there were.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from qsft.evals.grade import Grade
from qsft.evals.request import Generation

Key = tuple[str, int]


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
            for row in read_lines(path):
                found[row["document"], row["sample"]] = Generation(**row)
        return found

    def repair(self, task: str) -> None:
        """Cut off what a kill left behind the last whole line of each file."""
        for path in self._parts(task):
            cut_torn_line(path)

    def append(self, task: str, generations: Iterable[Generation]) -> Iterator[Generation]:
        """Pass the generations on, each written before it is passed."""
        if self.directory is None:
            for generation in generations:
                self._memory.setdefault(task, {})[generation.document, generation.sample] = generation
                yield generation
            return
        path = self._path(task, self.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for generation in generations:
                _write_line(file, asdict(generation))
                file.flush()  # a killed process loses only what is not handed to the system
                yield generation

    def finish(self, task: str, keys: Sequence[Key]) -> list[Generation]:
        """The task's generations in the order of `keys`; on disk they become one file in that order."""
        found = self.generations(task)
        missing = [key for key in keys if key not in found]
        if missing:
            raise ValueError(
                f"task {task!r} has {len(keys) - len(missing)} of {len(keys)} samples in {self.directory}; document "
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
                {"document": one.document, "sample": one.sample, **asdict(grade)}
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


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file; a broken line is named."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{path}:{number}: not a JSON line. Delete the line (it is sampled again), or start with --fresh."
                ) from error


def cut_torn_line(path: Path) -> None:
    """Cut a file after its last newline: a killed process may have written half a line behind it."""
    with path.open("rb+") as file:
        size = at = file.seek(0, os.SEEK_END)
        while at > 0:
            start = max(0, at - 65536)
            file.seek(start)
            newline = file.read(at - start).rfind(b"\n")
            if newline >= 0:
                at = start + newline + 1
                break
            at = start
        if at < size:
            file.truncate(at)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON lines whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    with unfinished.open("w", encoding="utf-8") as file:
        for row in rows:
            _write_line(file, row)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON whole or not at all; a number that does not exist (an error of one problem) is null."""
    write_text(path, json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    return None if isinstance(content, float) and content != content else content


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def _write_line(file: TextIO, row: Mapping[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
