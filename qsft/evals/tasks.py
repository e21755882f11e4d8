"""The benchmarks as data: where their rows are, which fields hold question and gold, how many rows they have.

A task of one's own is one line, `Task("mine", hub="me/mine", question=("q",), gold=("a",))`, or just a JSONL file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qsft.data.prompts import Prompt
from qsft.evals.grade import Gold, Grade
from qsft.evals.request import Generation
from qsft.files import read_lines
from qsft.ledger import check_stage
from qsft.targets.did_you_mean import did_you_mean


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
        """The fields that a row needs, for people."""
        names = [" or ".join(self.question), " or ".join(self.gold)]
        return ", ".join([*names, "options"] if self.multiple_choice else names)


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


def listed(wanted: str | Task | Iterable[str | Task]) -> list[str | Task]:
    """What is wanted, one by one; a string may hold several."""
    if isinstance(wanted, str):
        return [name.strip() for name in wanted.split(",") if name.strip()]
    return [wanted] if isinstance(wanted, Task) else list(wanted)


def find_tasks(wanted: str | Task | Iterable[str | Task]) -> list[Task]:
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
        return [_task_of(Path(name))]
    known = {**GROUPS, **{task.name: (task,) for task in TASKS.values()}}
    if name not in known:
        raise ValueError(
            f"unknown task {name!r}.{did_you_mean(name.lower(), known)} Known: {', '.join(known)}; a file of your own "
            "ends in .jsonl."
        )
    return known[name]


def _task_of(path: Path) -> Task:
    """The task that a JSONL file is: multiple choice when its first row has options."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no task file {path}. It holds one JSON object per line: problem, answer.")
    try:
        choice = "options" in next(read_lines(path), ())
    except ValueError:
        choice = False  # reading the problems names the line
    gold = ("answer_idx", "answer") if choice else ("answer",)
    return Task(path.stem, path=path, multiple_choice=choice, gold=gold)


def describe(task: Task) -> dict[str, Any]:
    """What a report says about where a task's rows came from."""
    return {"hub": task.hub, "split": task.split, "source": task.source, "published_rows": task.rows}
