"""The files of an evaluation.

    settings.json              what made the generations of each task; written when the evaluation starts
    problems/<task>.jsonl      the problems
    generations/<task>.jsonl   the responses, appended as they are drawn
    grades/<task>.jsonl        their grades
    summary.json, summary.md, report.html

Every line carries a digest of itself, and a generation also one of the settings that drew it: damage is named, and a
generation of another model or protocol is not used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qsft.evals.grading.grade import Grade
from qsft.evals.task_run import TaskRun
from qsft.evals.tasks import Problem
from qsft.files import make_directory, read_json, shown, write_json
from qsft.inference.sampling import Generation
from qsft.ledger import (
    SETTINGS,
    Key,
    Ledger,
    Record,
    check_stage,
    is_intact,
    move_aside,
    read_sealed_lines,
    seal,
    write_sealed_lines,
)
from qsft.processes import Group

PROBLEMS = "problems"
GENERATIONS = "generations"
GRADES = "grades"

REMEDY = "Delete the line (it is sampled again), or start again with --overwrite."
LOST_SETTINGS = (
    "Restore the file. Without it nothing says what made the generations: delete it and start again with --overwrite."
)
GRADE_AGAIN = "Grade again with `qsft eval … --rescore`."


@dataclass(frozen=True)
class TaskSettings:
    """What is recorded about one task when its evaluation starts.

    Args:
        model: name, context length, backend and dtype of the model, and whether its samples are reproducible.
        made_by: everything that the generations depend on.
        protocol: the protocol, with the rule that reads multiple choice.
        task: facts about the task: hub id, split, published number of problems.
        num_problems: how many problems are evaluated.
        path: the task's own file, if it has one.
        data_dir: where its problems were read from instead of the hub.
    """

    model: Mapping[str, Any]
    made_by: Mapping[str, Any]
    protocol: Mapping[str, Any]
    task: Mapping[str, Any]
    num_problems: int
    path: str | None = None
    data_dir: str | None = None

    @property
    def weights(self) -> str | None:
        """The identity of the weights; None where it was not computed."""
        return self.made_by.get("model")


class EvalDirectory:
    """Reads and writes the files of an evaluation."""

    def __init__(self, path: str | Path, group: Group | None = None) -> None:
        self.path = Path(path)
        self.group = group or Group()
        if self.path.exists():
            make_directory(self.path, "the evaluation's directory")
        self.generations = Ledger(self.path / GENERATIONS, self.group, remedy=REMEDY)

    # ---- settings ----

    def settings(self) -> dict[str, TaskSettings]:
        """The recorded settings by task, in the order of evaluation; empty before an evaluation started."""
        file = self.path / SETTINGS
        if not file.is_file():
            return {}
        found = {}
        for task, record in read_json(file, LOST_SETTINGS).items():
            if not isinstance(record, dict) or not is_intact(record):
                raise ValueError(f"{shown(file)}: the settings of {task!r} are damaged. {LOST_SETTINGS}")
            found[task] = TaskSettings(**_select_fields(TaskSettings, record))
        return found

    def write_settings(self, settings: Mapping[str, TaskSettings]) -> None:
        write_json(self.path / SETTINGS, {task: seal(asdict(one)) for task, one in settings.items()})

    # ---- problems, generations, grades ----

    def write_problems(self, task: str, problems: Sequence[Problem]) -> None:
        write_sealed_lines(self._file(PROBLEMS, task), map(asdict, problems))

    def read_problems(self, task: str) -> list[Problem]:
        records = self._read(PROBLEMS, task)
        return [Problem(**_select_fields(Problem, record)) for record in records]

    def check_generation(self, record: Record, run: TaskRun, digests: Mapping[str, str]) -> Generation:
        """The generation in a record; ValueError if it was drawn with other settings than the recorded ones."""
        if record.get("settings") != digests.get(record["problem"]):
            raise ValueError(
                f"{shown(self.path / GENERATIONS)}/{run.name}.jsonl: problem {record['problem']}, sample "
                f"{record['sample']} was drawn with other settings than those in {SETTINGS}. {REMEDY}"
            )
        return Generation.from_record(record)

    def complete_generations(self, run: TaskRun) -> list[Generation]:
        """The generations of a run in the order of its keys; ValueError if one is missing or has other settings."""
        digests = run.sample_digests(self.settings()[run.name].made_by)
        return [self.check_generation(one, run, digests) for one in self.generations.settle(run.name, run.keys)]

    def write_grades(self, task: str, grades: Mapping[Key, Grade]) -> None:
        records = ({"problem": problem, "sample": sample, **asdict(one)} for (problem, sample), one in grades.items())
        write_sealed_lines(self._file(GRADES, task), records)

    def read_grades(self, task: str) -> dict[Key, Grade]:
        records = self._read(GRADES, task)
        return {(one["problem"], one["sample"]): Grade(**_select_fields(Grade, one)) for one in records}

    def is_graded(self, task: str) -> bool:
        return self._file(GRADES, task).is_file()

    def discard(self, tasks: Sequence[str]) -> Path | None:
        """Move everything about these tasks to a directory beside this one; where it is now."""
        paths = [self._file(kind, task) for task in tasks for kind in (PROBLEMS, GRADES)]
        for task in tasks:
            paths += self.generations.files(task)
        return move_aside(self.path, paths)

    def _file(self, kind: str, task: str) -> Path:
        check_stage(task)
        return self.path / kind / f"{task}.jsonl"

    def _read(self, kind: str, task: str) -> list[Record]:
        file = self._file(kind, task)
        if not file.is_file():
            raise FileNotFoundError(f"{shown(file)} is missing. {GRADE_AGAIN}")
        return list(read_sealed_lines(file, remedy=GRADE_AGAIN))


def _select_fields(kind: Any, record: Record) -> dict[str, Any]:
    """The fields of a dataclass in a record, without the record's digest."""
    return {item.name: record[item.name] for item in fields(kind) if item.name in record}
