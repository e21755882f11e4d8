"""JSON lines that survive a kill: whole lines or none, files that are replaced in one step."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO


def read_lines(path: Path, remedy: str = "Delete the line.") -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file; a broken line is named."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number}: not a JSON line. {remedy}") from error


def write_line(file: TextIO, row: Mapping[str, Any]) -> None:
    """Append one row and hand it to the system: a killed process loses only what was not handed over."""
    file.write(json.dumps(row, ensure_ascii=False) + "\n")
    file.flush()


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
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON for people, whole or not at all; a number that does not exist (an error of one problem) is null."""
    write_text(path, json.dumps(_finite(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    return None if isinstance(content, float) and content != content else content
