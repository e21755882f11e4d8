"""From graded generations to numbers one can quote: exact means with intervals, per task and over tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from qsft.evals import stats
from qsft.evals.grade import Grade
from qsft.evals.request import Generation
from qsft.evals.tasks import Problem

READINGS = {
    "boxed": "the box",
    "first": "the paper's rule, whose first match scores higher here",
    "last": "the paper's rule, whose last match scores higher here",
}
Table = tuple[str, Sequence[str], list[list[str]]]  # title, columns, rows


@dataclass(frozen=True)
class Result:
    """The graded samples of one task: N·n generations in the order of problems, n after n."""

    task: str
    samples: int
    generations: Sequence[Generation] = field(repr=False)
    grades: Sequence[Grade] = field(repr=False)
    problems: Sequence[Problem] = field(default=(), repr=False)
    reading: str | None = None  # of multiple choice: which of READINGS the grades are

    @property
    def scores(self) -> stats.Scores:
        """1 where a sample is correct, [problem, sample]."""
        return np.array([grade.correct for grade in self.grades], dtype=float).reshape(-1, self.samples)

    def per_problem(self, *, lenient: bool = False) -> dict[str, float]:
        """Each problem's share of right samples."""
        samples: dict[str, list[bool]] = {}
        for generation, grade in zip(self.generations, self.grades, strict=True):
            samples.setdefault(generation.problem, []).append(grade.correct or (lenient and grade.lenient))
        return {problem: float(np.mean(right)) for problem, right in samples.items()}

    def readings(self) -> dict[str, float]:
        """The share of right answers by each reading of multiple choice."""
        golds = {problem.id: str(problem.gold).strip().upper() for problem in self.problems}
        pairs = [(one.choices or {}, golds.get(generation.problem))
                 for one, generation in zip(self.grades, self.generations, strict=True)]  # fmt: skip
        return {name: float(np.mean([read.get(name) == gold for read, gold in pairs])) for name in READINGS}


@dataclass(frozen=True)
class Report:
    """What an evaluation found. `summary` is what summary.json holds; str(report) is summary.md."""

    summary: dict[str, Any]
    results: Mapping[str, Result] = field(default_factory=dict, repr=False)

    def accuracy(self, task: str) -> float:
        """The exact mean over problems of the mean over samples."""
        return float(self.summary["tasks"][task]["acc"]["mean"])

    def __str__(self) -> str:
        return to_markdown([task_table(self.summary)], notes_of(self.summary))


def make_report(
    results: Sequence[Result],
    settings: Mapping[str, Any],
    notes: Mapping[str, list[str]],
    left_out: Mapping[str, str] | None = None,
) -> Report:
    """The report of a run: each task's numbers, the macro average, the settings and what a reader should know."""
    tasks = {one.task: {**task_numbers(one), "notes": notes.get(one.task, [])} for one in results}
    macro = {
        name: asdict(stats.macro_average([_values(one.per_problem(lenient=lenient)) for one in results]))
        for name, lenient in (("acc", False), ("acc_lenient", True))
    }
    summary = {"tasks": tasks, "macro": macro, "settings": dict(settings), "left_out": dict(left_out or {})}
    return Report(summary, {one.task: one for one in results})


def task_numbers(result: Result) -> dict[str, Any]:
    """Everything a report says about one task; shares are between 0 and 1."""
    grades, generations, n, scores = result.grades, result.generations, result.samples, result.scores
    correct = scores.sum(axis=1).astype(int)
    votes = [grades[i : i + n] for i in range(0, len(grades), n)]
    ladder = sorted({2**power for power in range(n.bit_length())} | {n})  # 1, 2, 4, … and n itself

    def share(values: list[bool]) -> float:
        return float(np.mean(values))

    return {
        "problems": len(scores),
        "samples": n,
        "acc": asdict(stats.mean_over_problems(_values(result.per_problem()))),
        "acc_lenient": asdict(stats.mean_over_problems(_values(result.per_problem(lenient=True)))),
        "runs": stats.run_spread(scores),
        "pass_at": {str(k): float(np.mean([stats.pass_at(c, n, k) for c in correct])) for k in ladder},
        "majority": float(np.mean([stats.majority([g.answer for g in v], [g.correct for g in v]) for v in votes])),
        "no_answer": share([grade.answer is None and not grade.ungraded for grade in grades]),
        "grading_failures": share([grade.failure is not None for grade in grades]),
        "grading_timeouts": share([grade.timed_out for grade in grades]),
        "truncated": share([generation.finish == "length" for generation in generations]),
        **({"reading": result.reading, "readings": result.readings()} if result.reading else {}),
        "tokens": token_numbers(np.array([generation.tokens for generation in generations]), scores.ravel() > 0),
    }


def token_numbers(tokens: np.ndarray, correct: np.ndarray) -> dict[str, float | None]:
    """The lengths of responses: mean and quartiles, and the means of right and wrong ones (None without any)."""
    p25, p50, p75 = map(float, np.quantile(tokens, [0.25, 0.5, 0.75]))
    means = {name: float(tokens[mask].mean()) if mask.any() else None for name, mask in
             (("correct", correct), ("wrong", ~correct))}  # fmt: skip
    return {"mean": float(tokens.mean()), "p25": p25, "p50": p50, "p75": p75, **means}


def _values(per_problem: Mapping[str, float]) -> stats.Scores:
    return np.array(list(per_problem.values()))


COLUMNS = (
    "task", "N", "n", "accuracy [95 %]", "± s.e.", "lenient", "runs ±", "pass@n", "maj@n", "no answer", "cut off",
    "tokens",
)  # fmt: skip


def task_table(summary: Mapping[str, Any]) -> Table:
    """One row per task and one for their average, in per cent."""
    rows = [
        [
            name, str(task["problems"]), str(task["samples"]), with_interval(task["acc"]),
            percent(task["acc"]["se"], 2), percent(task["acc_lenient"]["mean"]), percent(task["runs"]["std"], 2),
            percent(task["pass_at"][str(task["samples"])]), percent(task["majority"]), percent(task["no_answer"]),
            percent(task["truncated"]), f"{task['tokens']['mean']:.0f}",
        ]
        for name, task in summary["tasks"].items()
    ]  # fmt: skip
    macro = summary["macro"]
    average = [with_interval(macro["acc"]), percent(macro["acc"]["se"], 2), percent(macro["acc_lenient"]["mean"])]
    return "", COLUMNS, [*rows, ["macro", "", "", *average, *[""] * 6]]


def notes_of(summary: Mapping[str, Any]) -> list[str]:
    """What a reader should know, each once."""
    notes = [note for task in summary["tasks"].values() for note in task["notes"]]
    notes += [f"{task} is left out: {why}." for task, why in summary.get("left_out", {}).items()]
    return list(dict.fromkeys(notes))


def to_markdown(tables: Sequence[Table], notes: Sequence[str]) -> str:
    """Tables with their titles, then the notes."""
    lines: list[str] = []
    for title, columns, rows in tables:
        lines += [*([title, ""] if title else []), *markdown_table(columns, rows), ""]
    return "\n".join([*lines, *(f"- {note}" for note in notes), ""])


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table, numbers to the right."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, *rows)]
    return [lines[0], "|---" + "|---:" * (len(columns) - 1) + "|", *lines[1:]]


def with_interval(estimate: Mapping[str, float]) -> str:
    """mean [low, high] in per cent."""
    return f"{percent(estimate['mean'])} [{percent(estimate['low'])}, {percent(estimate['high'])}]"


def percent(share: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash where there is none."""
    return "–" if share is None or share != share else f"{100 * share:.{digits}f}"
