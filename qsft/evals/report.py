"""`summarize(directory)`: the report of an evaluation, computed from its files. Nothing is graded here.

`qsft eval`, `--rescore`, `qsft compare` and `qsft report` all read evaluations through it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from qsft.evals.eval_directory import EvalDirectory, TaskSettings
from qsft.evals.figures import accuracy_figure, length_histogram, pass_figure
from qsft.evals.findings import CaptionedFigure, Table, percent, to_markdown, with_interval, write_findings
from qsft.evals.grading.multiple_choice import READINGS, score_data_set
from qsft.evals.responses_page import responses_part
from qsft.evals.results import Result, task_numbers
from qsft.evals.stats import macro_average
from qsft.files import shown
from qsft.inference.sampling import Generation
from qsft.ledger import Key

SUMMARY = "summary.json"
PAGE = "report.html"
COLUMNS = (
    "task", "N", "n", "accuracy [95 %]", "± s.e.", "lenient", "runs ±", "pass@n", "maj@n", "no answer", "cut off",
    "tokens",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What an evaluation found: the content of summary.json, and the graded responses by task."""

    summary: dict[str, Any]
    results: Mapping[str, Result] = field(default_factory=dict, repr=False)

    def accuracy(self, task: str) -> float:
        """The exact mean over problems of the mean over samples."""
        return float(self.summary["tasks"][task]["acc"]["mean"])

    def __str__(self) -> str:
        return to_markdown([self.table()], self.notes())

    def table(self) -> Table:
        rows = [_table_row(name, numbers) for name, numbers in self.summary["tasks"].items()]
        strict = self.summary["macro"]["acc"]
        lenient = self.summary["macro"]["acc_lenient"]
        average = [with_interval(strict), percent(strict["se"], 2), percent(lenient["mean"])]
        macro = ["macro", "", "", *average]
        macro += [""] * (len(COLUMNS) - len(macro))
        return Table("", COLUMNS, [*rows, macro])

    def notes(self) -> list[str]:
        notes = [note for task in self.summary["tasks"].values() for note in task["notes"]]
        notes += [f"{task} is left out: {reason}." for task, reason in self.summary["left_out"].items()]
        return list(dict.fromkeys(notes))  # without repetitions

    def figures(self) -> list[CaptionedFigure]:
        tasks = self.summary["tasks"]
        figures = [
            CaptionedFigure(accuracy_figure(tasks), "Accuracy with 95 % intervals"),
            CaptionedFigure(
                length_histogram(list(self.results.values())), "Response lengths of correct and wrong answers"
            ),
        ]
        if any(task["samples"] > 1 for task in tasks.values()):
            figures.append(CaptionedFigure(pass_figure(tasks), "pass@k: at least one of k samples is correct"))
        return figures

    def write(self, directory: Path) -> Path:
        """Write summary.json, summary.md and report.html; return the page's path."""
        title = f"Evaluation of {shown(self.summary['settings']['model'])}"
        return write_findings(
            directory / SUMMARY,
            directory / PAGE,
            title=title,
            summary=self.summary,
            tables=[self.table()],
            notes=self.notes(),
            figures=self.figures(),
            responses=responses_part({title: self.results}),
        )


def summarize(directory: str | Path) -> Report:
    """The report of the evaluation in a directory, from what sampling and grading wrote.

    A task that is not finished, or that other weights answered than the task evaluated last, is left out and named.

    Raises:
        FileNotFoundError: if there is no such directory, or no graded evaluation in it.
        ValueError: if a file is damaged.
    """
    if not Path(directory).is_dir():
        raise FileNotFoundError(
            f"there is no directory {shown(directory)}. Give the directory of an evaluation, or of an evaluated model."
        )
    files = EvalDirectory(directory)
    settings = files.settings()
    results: dict[str, Result] = {}
    left_out: dict[str, str] = {}
    # Settings are in the order of evaluation, so the last ones with generations are the newest.
    with_generations = [recorded for task, recorded in settings.items() if files.generations.has_records(task)]
    for task, recorded in settings.items():
        reason = _why_incomplete(files, task, recorded)
        if reason is None and recorded.weights != with_generations[-1].weights:
            reason = "other weights answered it"
        if reason is None:
            results[task] = read_result(files, task, recorded)
        else:
            left_out[task] = reason
    if not results:
        reasons = "".join(f" {task}: {reason}." for task, reason in left_out.items())
        raise FileNotFoundError(
            f"{shown(directory)} has no graded evaluation.{reasons} Run `qsft eval MODEL` first: it writes into "
            "MODEL/_eval, or into its --output_dir."
        )
    return make_report(results, settings, left_out)


def make_report(
    results: Mapping[str, Result], settings: Mapping[str, TaskSettings], left_out: Mapping[str, str]
) -> Report:
    """The report of results whose settings are known."""
    tasks = {}
    for name, result in results.items():
        tasks[name] = {**task_numbers(result), "notes": task_notes(result, settings[name])}
    strict = [result.problem_means() for result in results.values()]
    lenient = [result.problem_means(lenient=True) for result in results.values()]
    model = settings[list(results)[-1]].model
    summary = {
        "tasks": tasks,
        "macro": {"acc": asdict(macro_average(strict)), "acc_lenient": asdict(macro_average(lenient))},
        "settings": {
            **model,
            "tasks": {name: _describe_measurement(settings[name]) for name in results},
        },
        "left_out": dict(left_out),
    }
    return Report(summary, dict(results))


def _describe_measurement(settings: TaskSettings) -> dict[str, Any]:
    """How a task was measured, and the facts about it."""
    return {
        **settings.protocol,
        "backend": settings.model["backend"],
        "dtype": settings.model["dtype"],
        **settings.task,
    }


def _why_incomplete(files: EvalDirectory, task: str, recorded: TaskSettings) -> str | None:
    """Why a task is not complete; None if it is."""
    if not files.generations.has_records(task):
        return "its generations are lost" if files.is_graded(task) else "it is not finished"
    expected = recorded.num_problems * recorded.protocol["num_samples"]
    if not files.is_graded(task) or len(files.generations.read(task)) < expected:
        return "it is not finished"
    return None


def read_result(files: EvalDirectory, task: str, settings: TaskSettings) -> Result:
    """The graded generations of a complete task; multiple choice is scored by the rule of the protocol."""
    problems = files.read_problems(task)
    grades = files.read_grades(task)
    generations = {key: Generation.from_record(record) for key, record in files.generations.read(task).items()}
    keys: list[Key] = list(grades)
    if set(keys) != set(generations):
        raise ValueError(
            f"{shown(files.path)}: grades/{task}.jsonl has {len(keys)} grades and generations/{task}.jsonl "
            f"{len(generations)} generations. Grade again with `qsft eval … --rescore`."
        )
    ordered = [grades[key] for key in keys]
    reading = None
    if settings.task["multiple_choice"] and any(grade.choices for grade in ordered):
        golds = {problem.id: problem.gold for problem in problems}
        reading, ordered = score_data_set(ordered, [golds[problem] for problem, _ in keys], settings.protocol["rule"])
    num_samples = len(keys) // len({problem for problem, _ in keys})
    return Result(task, num_samples, [generations[key] for key in keys], ordered, problems, reading)


def task_notes(result: Result, settings: TaskSettings) -> list[str]:
    """What a reader has to know about the numbers of one task."""
    name = result.task
    model = settings.model
    published = settings.task["published_problems"]
    notes = [_sampling_note(settings)]
    if published is not None and published != settings.num_problems:
        notes.append(f"{name}: {settings.num_problems} of the {published} published problems.")
    if result.reading is not None:
        accuracy = {reading: percent(value) for reading, value in result.accuracy_by_reading().items()}
        notes.append(
            f"{name}: read by {READINGS[result.reading]}. Correct by the box {accuracy['boxed']} %, by the first match "
            f"of the paper's rule {accuracy['first']} %, by its last {accuracy['last']} %."
        )
    limit = settings.protocol["max_new_tokens"]
    at_context = sum(one.finish == "length" and one.tokens < limit for one in result.generations)
    if at_context:
        notes.append(f"{name}: {at_context} responses ended at the model's context of {model['context']} tokens.")
    timeouts = sum(grade.timed_out for grade in result.grades)
    if timeouts:
        notes.append(f"{name}: {timeouts} responses took too long to grade and count as wrong.")
    failures = [grade.failure.partition(":")[0] for grade in result.grades if grade.failure]
    if failures:
        notes.append(
            f"{name}: grading raised errors on {len(failures)} responses, which count as wrong "
            f"({', '.join(sorted(set(failures)))}; see grades/)."
        )
    return notes


def _sampling_note(settings: TaskSettings) -> str:
    if settings.protocol["temperature"] == 0:
        return "greedy: one response per prompt, so the interval covers the choice of problems only."
    if settings.model["reproducible"]:
        return "float32, seeded per sample: batching, processes and resuming do not change samples."
    return (
        f"{settings.model['backend']} in {settings.model['dtype']}: rounding depends on the batch, so batching may "
        "change samples from run to run."
    )


def _table_row(name: str, numbers: Mapping[str, Any]) -> list[str]:
    return [
        name,
        str(numbers["problems"]),
        str(numbers["samples"]),
        with_interval(numbers["acc"]),
        percent(numbers["acc"]["se"], 2),
        percent(numbers["acc_lenient"]["mean"]),
        percent(numbers["runs"]["std"], 2),
        percent(numbers["pass_at"][str(numbers["samples"])]),
        percent(numbers["majority"]),
        percent(numbers["no_answer"]),
        percent(numbers["truncated"]),
        f"{numbers['tokens']['mean']:.0f}",
    ]
