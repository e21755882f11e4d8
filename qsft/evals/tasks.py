"""Tasks by name: where their problems come from, which fields hold question and gold answer, how many there are.

A task of your own is `Task("mine", hub="me/mine", question=("q",), gold=("a",))`, or just a JSONL file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qsft.data.prompts import Prompt
from qsft.evals.grading.grade import Gold, Grade
from qsft.files import read_lines, shown
from qsft.inference.sampling import Generation
from qsft.ledger import check_stage
from qsft.validation import did_you_mean


@dataclass(frozen=True)
class Problem:
    """One problem. `id` is a digest of the question, so order, subsets and other files do not change it."""

    id: str
    question: str
    gold: Gold
    options: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Task:
    """A benchmark: `problems` in memory, else the rows of `data_dir/<name>.jsonl`, else those of the hub data set.

    Args:
        hub: id of the hub data set; `split` and `config` are its split and configuration.
        file: a JSON file {source: [row, …]} in the hub data set, of which the rows of `source` are read.
        published_problems: how many problems the published benchmark has.
        question, gold: names of fields; the first one that a row has is read.
        title: the benchmark's usual name.
        path: a local JSONL file, which is read instead of `data_dir` and the hub.
        prompt: prompt(problem) → text, token ids or messages; replaces the protocol's prompt preset.
        grader: grader(generation, problem) → a Grade or a bool, called in this process; replaces the grading.
    """

    name: str
    hub: str | None = None
    split: str = "test"
    config: str | None = None
    file: str | None = None
    source: str | None = None
    published_problems: int | None = None
    question: tuple[str, ...] = ("problem", "question")
    gold: tuple[str, ...] = ("answer",)
    multiple_choice: bool = False
    title: str = ""
    path: Path | None = None
    problems: Sequence[Problem] | None = field(default=None, repr=False)
    prompt: Callable[[Problem], Prompt] | None = None
    grader: Callable[[Generation, Problem], Grade | bool] | None = None

    @property
    def fields(self) -> str:
        """The fields that a row needs, for messages."""
        names = [" or ".join(self.question), " or ".join(self.gold)]
        if self.multiple_choice:
            names.append("options")
        return ", ".join(names)

    def facts(self) -> dict[str, Any]:
        """What a report says about the task, as JSON."""
        return {
            "title": self.title,
            "hub": self.hub,
            "split": self.split,
            "source": self.source,
            "published_problems": self.published_problems,
            "multiple_choice": self.multiple_choice,
        }


TASKS: dict[str, Task] = {}
GROUPS: dict[str, list[Task]] = {}


def register_task(task: Task, *, group: str | None = None) -> None:
    """Make a task available under its name, and as one of a group of tasks."""
    TASKS[task.name] = task
    if group is not None:
        GROUPS.setdefault(group, []).append(task)


def _register_math(name: str, hub: str, published_problems: int, title: str, **further: Any) -> None:
    register_task(Task(name, hub, published_problems=published_problems, title=title, **further), group="math")


def _register_medical(name: str, source: str, published_problems: int, title: str) -> None:
    task = Task(
        name,
        "UCSC-VLAA/m1_eval_data",
        file="m1_eval_data.json",
        source=source,
        published_problems=published_problems,
        question=("question",),
        gold=("answer_idx",),
        multiple_choice=True,
        title=title,
    )
    register_task(task, group="medical")


_register_math("math500", "HuggingFaceH4/MATH-500", 500, "MATH-500")
_register_math("minerva", "math-ai/minervamath", 272, "Minerva Math", gold=("answer", "solution"))
_register_math("olympiadbench", "math-ai/olympiadbench", 675, "OlympiadBench", gold=("final_answer", "answer"))
_register_math("aime24", "HuggingFaceH4/aime_2024", 30, "AIME 2024", split="train")
_register_math("amc23", "math-ai/amc23", 40, "AMC 2023")

_register_medical("medmcqa", "MedMCQA", 4183, "MedMCQA")
_register_medical("medqa", "MedQA", 1273, "MedQA")
_register_medical("pubmedqa", "PubMedQA", 1000, "PubMedQA")
_register_medical("mmlu_pro_medical", "MMLU-Pro", 1535, "MMLU-Pro, medical")
_register_medical("gpqa_medical", "GPQA", 390, "GPQA, medical")
_register_medical("lancet", "Lancet", 412, "Lancet")
_register_medical("medbullets_4", "MedBullets_op4", 308, "MedBullets, 4 options")
_register_medical("medbullets_5", "MedBullets_op5", 308, "MedBullets, 5 options")
_register_medical("medxpertqa", "MedXpertQA", 1449, "MedXpertQA")
_register_medical("nejm", "NEJM", 603, "NEJM")

TaskNames = str | Task | Iterable[str | Task]


def find_tasks(tasks: TaskNames) -> list[Task]:
    """The tasks that are given by names of tasks or groups (math, medical), as JSONL files, or as Task objects.

    A string may hold several names, separated by commas.

    Raises:
        ValueError: for an unknown name, for two different tasks of one name, and if no task is named.
    """
    found: dict[str, Task] = {}
    for name in list_tasks(tasks):
        for task in [name] if isinstance(name, Task) else _tasks_named(name):
            check_stage(task.name)  # the evaluation's files have this name
            if found.setdefault(task.name, task) != task:
                raise ValueError(f"two different tasks are called {task.name!r}; rename one of them.")
    if not found:
        raise ValueError(f"no task is given. Known: {', '.join([*GROUPS, *TASKS])}; a file of your own ends in .jsonl.")
    return list(found.values())


def list_tasks(tasks: TaskNames) -> list[str | Task]:
    """Names and tasks as a list; a string is split at its commas."""
    if isinstance(tasks, str):
        return [name.strip() for name in tasks.split(",") if name.strip()]
    return [tasks] if isinstance(tasks, Task) else list(tasks)


def _tasks_named(name: str) -> Sequence[Task]:
    if name.endswith(".jsonl"):
        return [_task_in_file(Path(name))]
    if name in GROUPS:
        return GROUPS[name]
    if name in TASKS:
        return [TASKS[name]]
    known = [*GROUPS, *TASKS]
    guess = did_you_mean(name.lower(), known)
    raise ValueError(f"unknown task {name!r}.{guess} Known: {', '.join(known)}; a file of your own ends in .jsonl.")


def _task_in_file(path: Path) -> Task:
    """The task of a JSONL file; multiple choice if its first row has options."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {shown(path)} (--tasks). Check the path. A task of your own is a file of JSON lines "
            'with the fields problem and answer: {"problem": "1 + 1 = ?", "answer": "2"}.'
        )
    try:
        first_row = next(read_lines(path), {})
    except ValueError:
        first_row = {}  # reading the problems names the broken line
    multiple_choice = "options" in first_row
    gold = ("answer_idx", "answer") if multiple_choice else ("answer",)
    return Task(path.stem, path=path, multiple_choice=multiple_choice, gold=gold)
