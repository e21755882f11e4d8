"""Read the problems of a task from a local JSONL file or from the hub, and check every row."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from qsft.evals.grading.boxes import last_boxed
from qsft.evals.tasks import Problem, Task
from qsft.files import read_lines, shown


class Row(NamedTuple):
    """A row of a data set, and its place for messages: file and line."""

    place: str
    fields: Mapping[str, Any]


def load_problems(task: Task, data_dir: str | Path | None = None, limit: int | None = None) -> list[Problem]:
    """A task's problems in the order of its rows.

    A problem that occurs twice is an error, except in a benchmark as published: there the second one gets another id.

    Args:
        data_dir: directory of local <task>.jsonl files, instead of the hub.
        limit: return only this many problems, the first ones.

    Raises:
        FileNotFoundError: if data_dir has no file for the task.
        OSError: if the hub cannot be read.
        ValueError: if a row lacks a field, or if a problem occurs twice.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}.")
    if task.problems is not None:
        placed = [(f"problem {index}", problem) for index, problem in enumerate(task.problems)]
    else:
        rows = read_rows(task, Path(data_dir) if data_dir is not None else None)
        placed = [(row.place, to_problem(row, task)) for row in rows]
    if not placed:
        origin = task.path or data_dir or task.hub
        raise ValueError(
            f"task {task.name!r} has no problems: {origin} is empty. It should have rows with the fields {task.fields}."
        )
    return _distinct(placed, task)[:limit]


def _distinct(placed: Sequence[tuple[str, Problem]], task: Task) -> list[Problem]:
    """The problems with distinct ids; ValueError for a repeated one, unless the benchmark was published with it."""
    places: dict[str, list[str]] = {}
    problems = []
    for place, problem in placed:
        earlier = places.setdefault(problem.id, [])
        if earlier and len(placed) != task.published_problems:
            raise ValueError(
                f"{place}: the same problem as {earlier[0]}. Remove one of them, or {task.name!r} counts it twice."
            )
        earlier.append(place)
        if len(earlier) > 1:
            problem = replace(problem, id=f"{problem.id}-{len(earlier)}")
        problems.append(problem)
    return problems


def to_problem(row: Row, task: Task) -> Problem:
    """The problem in a row; ValueError names a missing, empty or wrong field."""
    _, question = _read_field(row, task.question, task)
    question = str(question).strip()
    gold = _gold(row, task)
    options = None
    if task.multiple_choice:
        _, listed = _read_field(row, ("options",), task)
        options = _options(listed, row.place)
        gold = _letter(gold, options, row.place)
    # The gold answer is not part of the digest, so that a corrected one keeps the generations.
    content = json.dumps([question, sorted(options.items()) if options else None], ensure_ascii=False)
    return Problem(blake2b(content.encode(), digest_size=8).hexdigest(), question, gold, options)


def read_rows(task: Task, data_dir: Path | None) -> Iterator[Row]:
    """The rows of a task: its own file, else data_dir/<name>.jsonl (or the medical sets' one file), else the hub."""
    if task.path is None and data_dir is None:
        yield from _rows_of_hub(task)
        return
    path = task.path or Path(data_dir or "", f"{task.name}.jsonl")
    if path.is_file():
        numbers = [number for number, line in enumerate(path.read_bytes().split(b"\n"), start=1) if line.strip()]
        for number, fields in zip(numbers, read_lines(path, remedy="Write one object per line.")):
            yield Row(f"{shown(path)}:{number}", fields)
    elif task.file and path.with_name(task.file).is_file():
        yield from _rows_of_source(path.with_name(task.file), task)
    else:
        raise FileNotFoundError(
            f"--data_dir: {shown(path)} is missing; task {task.name!r} is read from there, as JSON lines with the "
            f"fields {task.fields}."
        )


def _rows_of_source(path: Path, task: Task) -> Iterator[Row]:
    """The rows of one source in a JSON file {source: [row, …]}.

    The name of the source is compared without case, dashes and underscores, and may have a suffix in the file.
    """
    sources = json.loads(path.read_text(encoding="utf-8"))
    name = _letters_and_digits(task.source or task.name)
    found = [source for source in sources if _letters_and_digits(source).startswith(name)]
    if len(found) != 1:
        raise ValueError(f"{shown(path)}: {len(found)} sources look like {task.source!r}; it has {', '.join(sources)}.")
    for number, fields in enumerate(sources[found[0]]):
        yield Row(f"{shown(path)}: {found[0]}[{number}]", fields)


def _letters_and_digits(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def _rows_of_hub(task: Task) -> Iterator[Row]:
    from datasets import load_dataset
    from huggingface_hub import hf_hub_download

    if task.hub is None:
        raise ValueError(f"task {task.name!r} has neither problems, a path nor a hub data set. Give it one of them.")
    try:
        if task.file:
            yield from _rows_of_source(Path(hf_hub_download(task.hub, task.file, repo_type="dataset")), task)
            return
        data = load_dataset(task.hub, task.config, split=task.split)
    except OSError as error:  # no network, no such data set, no access: all of them derive from it
        reason = str(error).splitlines()[0].rstrip(".")
        raise OSError(
            f"task {task.name!r} could not be read from the hub ({task.hub}): {reason}. "
            f"Without a network, put its rows into DIR/{task.name}.jsonl (fields {task.fields}) and add --data_dir DIR."
        ) from error
    for number, fields in enumerate(data):
        yield Row(f"{task.hub} row {number}", fields)


def _read_field(row: Row, names: tuple[str, ...], task: Task) -> tuple[str, Any]:
    """The first of these fields that the row has: its name and its value."""
    for name in names:
        value = row.fields.get(name)
        if value is None:
            continue
        if isinstance(value, str) and not value.strip():
            raise ValueError(f"{row.place}: field {name!r} is empty. Fill it in, or delete the row.")
        return name, value
    missing = " or ".join(map(repr, names))
    found = ", ".join(row.fields) or "none"
    raise ValueError(
        f"{row.place}: field {missing} is missing. {task.name!r} needs {task.fields}; this row has {found}. Rename its "
        "fields, or add the missing one."
    )


def _gold(row: Row, task: Task) -> Any:
    """The gold answer: a value, a list of several answers, or the last box of a field `solution`."""
    field, gold = _read_field(row, task.gold, task)
    if isinstance(gold, list):
        if not gold or any(not str(one).strip() for one in gold):
            raise ValueError(f"{row.place}: the list of gold answers is empty or has an empty entry. Correct the row.")
        return str(gold[0]) if len(gold) == 1 else [str(one) for one in gold]
    if field != "solution":
        return gold
    boxed = last_boxed(str(gold))
    if not boxed:
        raise ValueError(f"{row.place}: the solution has no \\boxed answer to take as gold. Add a field 'answer'.")
    return boxed


def _options(options: Any, place: str) -> dict[str, str]:
    if isinstance(options, list):
        options = {chr(ord("A") + index): text for index, text in enumerate(options)}
    if not isinstance(options, dict) or len(options) < 2:
        raise ValueError(f"{place}: field 'options' must be a list or {{\"A\": text, …}} of two or more.")
    # The hub's columns give every row all letters; those that a row does not use are null.
    return {str(letter).strip().upper(): str(text) for letter, text in options.items() if text is not None}


def _letter(gold: Any, options: Mapping[str, str], place: str) -> str:
    """The gold letter; a gold answer may also be the index of an option."""
    letters = list(options)
    if isinstance(gold, int) and 0 <= gold < len(letters):
        return letters[gold]
    letter = str(gold).strip().upper()
    if letter not in options:
        raise ValueError(f"{place}: the gold answer {gold!r} is none of the options {', '.join(letters)}.")
    return letter
