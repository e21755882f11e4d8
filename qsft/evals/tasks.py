"""The benchmarks as data: where their rows are, which fields hold question and gold, how many rows they have.

Rows become problems, each checked before any model is loaded: of a local JSONL file, or of the hub.

A task of one's own is one line, `Task("mine", hub="me/mine", question=("q",), gold=("a",))`, or just a JSONL file.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qsft.data.prompts import Prompt
from qsft.evals.grade import Gold, Grade, last_boxed
from qsft.files import read_lines, shown
from qsft.inference.sampling import Generation
from qsft.ledger import check_stage
from qsft.validation import did_you_mean

Placed = tuple[str, Mapping[str, Any]]  # where a row stands (for messages), what it holds


@dataclass(frozen=True)
class Problem:
    """One problem. `id` is a digest of what is asked, so order, subsets and other files do not change it."""

    id: str
    question: str
    gold: Gold
    options: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Task:
    """A benchmark. `problems` in memory, else rows of `data_dir/<name>.jsonl`, else of the hub data set.

    question, gold: names of the field, the first that a row has is read. `prompt` and `grader` replace the protocol's
    preset and the package's grading: prompt(problem) is text, token ids or messages; grader(generation, problem)
    is a Grade or a bool, and is called in this process.
    """

    name: str
    hub: str | None = None
    split: str = "test"
    config: str | None = None
    file: str | None = None
    source: str | None = None
    rows: int | None = None
    question: tuple[str, ...] = ("problem", "question")
    gold: tuple[str, ...] = ("answer",)
    multiple_choice: bool = False
    path: Path | None = None
    problems: Sequence[Problem] | None = field(default=None, repr=False)
    prompt: Callable[[Problem], Prompt] | None = None
    grader: Callable[[Generation, Problem], Grade | bool] | None = None

    @property
    def fields(self) -> str:
        names = [" or ".join(self.question), " or ".join(self.gold), "options"]
        return ", ".join(names if self.multiple_choice else names[:2])


MATH = (
    Task("math500", "HuggingFaceH4/MATH-500", rows=500),
    Task("minerva", "math-ai/minervamath", rows=272, gold=("answer", "solution")),
    Task("olympiadbench", "math-ai/olympiadbench", rows=675, gold=("final_answer", "answer")),
    Task("aime24", "HuggingFaceH4/aime_2024", "train", rows=30),
    Task("amc23", "math-ai/amc23", rows=40),
)
_CHOICE: dict[str, Any] = {"question": ("question",), "gold": ("answer_idx",), "multiple_choice": True}
MEDICAL = tuple(
    Task(name, "UCSC-VLAA/m1_eval_data", file="m1_eval_data.json", source=source, rows=rows, **_CHOICE)
    for name, source, rows in (
        ("medmcqa", "MedMCQA", 4183),
        ("medqa", "MedQA", 1273),
        ("pubmedqa", "PubMedQA", 1000),
        ("mmlu_pro_medical", "MMLU-Pro", 1535),
        ("gpqa_medical", "GPQA", 390),
        ("lancet", "Lancet", 412),
        ("medbullets_4", "MedBullets_op4", 308),
        ("medbullets_5", "MedBullets_op5", 308),
        ("medxpertqa", "MedXpertQA", 1449),
        ("nejm", "NEJM", 603),
    )
)
TASKS = {task.name: task for task in (*MATH, *MEDICAL)}
GROUPS = {"math": MATH, "medical": MEDICAL}
Wanted = str | Task | Iterable[str | Task]


def listed(wanted: Wanted) -> list[str | Task]:
    if isinstance(wanted, str):
        return [name.strip() for name in wanted.split(",") if name.strip()]
    return [wanted] if isinstance(wanted, Task) else list(wanted)


def find_tasks(wanted: Wanted) -> list[Task]:
    """The tasks named: groups (math, medical), names, JSONL files, or Task objects; a string may hold several."""
    found: dict[str, Task] = {}
    for task in (task for one in listed(wanted) for task in ([one] if isinstance(one, Task) else _named(one))):
        check_stage(task.name)  # files are named after it
        if found.setdefault(task.name, task) != task:
            raise ValueError(f"two different tasks are called {task.name!r}; rename one of them.")
    if not found:
        raise ValueError(f"no task is named. Choose {', '.join(GROUPS)}, or of {', '.join(TASKS)}, or a JSONL file.")
    return list(found.values())


def _named(name: str) -> Sequence[Task]:
    if name.endswith(".jsonl"):
        return [_task_in_file(Path(name))]
    known = {**GROUPS, **{task.name: (task,) for task in TASKS.values()}}
    if name not in known:
        guess = did_you_mean(name.lower(), known)
        raise ValueError(f"unknown task {name!r}.{guess} Known: {', '.join(known)}; a file of your own ends in .jsonl.")
    return known[name]


def _task_in_file(path: Path) -> Task:
    """The task that a JSONL file is: multiple choice when its first row has options."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no task file {shown(path)} of JSON lines with problem, answer.")
    try:
        choice = "options" in next(read_lines(path), ())
    except ValueError:
        choice = False  # reading the problems names the line
    gold = ("answer_idx", "answer") if choice else ("answer",)
    return Task(path.stem, path=path, multiple_choice=choice, gold=gold)


def load_problems(task: Task, data_dir: str | Path | None = None, limit: int | None = None) -> list[Problem]:
    """A task's problems in the order of its rows; repeated ones are renamed if they were published so, else refused."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} leaves no problem of {task.name}; it must be 1 or more.")
    if task.problems is not None:
        placed = [(f"problem {i}", problem) for i, problem in enumerate(task.problems)]
    else:
        rows = read_rows(task, Path(data_dir) if data_dir is not None else None)
        placed = [(place, to_problem(row, task, place)) for place, row in rows]
    if not placed:
        raise ValueError(f"task {task.name!r} has no problems: {task.path or data_dir or task.hub} is empty.")
    places: dict[str, list[str]] = {}
    problems = []
    for place, problem in placed:
        same = places.setdefault(problem.id, [])
        if same and len(placed) != task.rows:
            raise ValueError(f"{place}: the same problem as {same[0]}; remove one, or {task.name!r} counts it twice.")
        same.append(place)
        problems.append(replace(problem, id=f"{problem.id}-{len(same)}") if len(same) > 1 else problem)
    return problems[:limit]


def to_problem(row: Mapping[str, Any], task: Task, place: str) -> Problem:
    question = str(_value(row, task.question, place, task)).strip()
    options = _options(_value(row, ("options",), place, task), place) if task.multiple_choice else None
    gold = _gold(row, task, place) if options is None else _letter(_gold(row, task, place), options, place)
    # The gold answer is left out of the digest, so that a corrected one keeps the generations.
    asked = json.dumps([question, sorted(options.items()) if options else None], ensure_ascii=False)
    return Problem(blake2b(asked.encode(), digest_size=8).hexdigest(), question, gold, options)


def read_rows(task: Task, data_dir: Path | None) -> Iterator[Placed]:
    """The rows of a task: its own file, else data_dir/<name>.jsonl (or the medical sets' one file), else the hub."""
    path = task.path or Path(data_dir or "", f"{task.name}.jsonl")
    if task.path is None and data_dir is None:
        yield from _rows_of_hub(task)
    elif path.is_file():
        numbers = [n for n, line in enumerate(path.read_bytes().split(b"\n"), start=1) if line.strip()]
        for number, row in zip(numbers, read_lines(path, remedy="Write one object per line.")):
            yield f"{shown(path)}:{number}", row
    elif task.file and path.with_name(task.file).is_file():
        yield from _rows_of_source(path.with_name(task.file), task)
    else:
        needed = f"task {task.name!r} needs its rows there, JSON lines with the fields {task.fields}"
        raise FileNotFoundError(f"--data_dir: {shown(path)} is missing; {needed}.")


def _rows_of_source(path: Path, task: Task) -> Iterator[Placed]:
    """The rows of one source in a JSON file {source: [row, …]}; names match up to case, dashes and a suffix."""
    sources = json.loads(path.read_text(encoding="utf-8"))
    bare = {name: re.sub(r"[\W_]", "", name).casefold() for name in (*sources, task.source or task.name)}
    found = [name for name in sources if bare[name].startswith(bare[task.source or task.name])]
    if len(found) != 1:
        raise ValueError(f"{shown(path)}: {len(found)} sources look like {task.source!r}; it has {', '.join(sources)}.")
    for number, row in enumerate(sources[found[0]]):
        yield f"{shown(path)}: {found[0]}[{number}]", row


def _rows_of_hub(task: Task) -> Iterator[Placed]:
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
        raise OSError(
            f"task {task.name!r} could not be read from the hub ({task.hub}): {str(error).splitlines()[0]} "
            f"Without a network, put its rows into DIR/{task.name}.jsonl (fields {task.fields}) and add --data_dir DIR."
        ) from error
    for number, row in enumerate(data):
        yield f"{task.hub} row {number}", row


def _value(row: Mapping[str, Any], names: tuple[str, ...], place: str, task: Task) -> Any:
    for name in names:
        if row.get(name) is not None:
            if isinstance(row[name], str) and not row[name].strip():
                raise ValueError(f"{place}: field {name!r} is empty. Task {task.name!r} needs {task.fields}.")
            return row[name]
    missing, found = " or ".join(map(repr, names)), ", ".join(row) or "none"
    raise ValueError(f"{place}: field {missing} is missing. {task.name!r} needs {task.fields}; this row has {found}.")


def _gold(row: Mapping[str, Any], task: Task, place: str) -> Any:
    gold = _value(row, task.gold, place, task)
    if isinstance(gold, list):
        if not gold or any(not str(one).strip() for one in gold):
            raise ValueError(f"{place}: the list of gold answers is empty or holds an empty one.")
        return str(gold[0]) if len(gold) == 1 else [str(one) for one in gold]
    if gold is not row.get("solution"):
        return gold
    boxed = last_boxed(str(gold))
    if not boxed:
        raise ValueError(f"{place}: the solution has no \\boxed answer to take as gold. Add a field 'answer'.")
    return boxed


def _options(options: Any, place: str) -> dict[str, str]:
    if isinstance(options, list):
        options = {chr(ord("A") + index): text for index, text in enumerate(options)}
    if not isinstance(options, dict) or len(options) < 2:
        raise ValueError(f"{place}: field 'options' must be a list or {{\"A\": text, …}} of two or more.")
    # The hub's columns give every row all letters; those that a row does not use are null.
    return {str(letter).strip().upper(): str(text) for letter, text in options.items() if text is not None}


def _letter(gold: Any, options: Mapping[str, str], place: str) -> str:
    letters = list(options)
    letter = letters[gold] if isinstance(gold, int) and 0 <= gold < len(letters) else str(gold).strip().upper()
    if letter not in options:
        raise ValueError(f"{place}: the gold answer {gold!r} is none of the options {', '.join(letters)}.")
    return letter
