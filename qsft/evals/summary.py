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


@dataclass(frozen=True)
class Result:
    """The graded samples of one task: N·n generations in the order of problems, n after n."""

    task: str
    samples: int
    generations: Sequence[Generation] = field(repr=False)
    grades: Sequence[Grade] = field(repr=False)
    problems: Sequence[Problem] = field(default=(), repr=False)
    reading: str | None = None  # of multiple choice: which of READINGS the grades are

    def matrix(self, values: Sequence[float | bool]) -> stats.Scores:
        """Values of the samples as [problem, sample]."""
        return np.asarray(values, dtype=float).reshape(-1, self.samples)

    @property
    def scores(self) -> stats.Scores:
        """1 where a sample is correct, [problem, sample]."""
        return self.matrix([grade.correct for grade in self.grades])

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
        return to_markdown(self.summary)


def make_report(
    results: Sequence[Result],
    settings: Mapping[str, Any],
    notes: Mapping[str, list[str]],
    left_out: Mapping[str, str] | None = None,
) -> Report:
    """The report of a run: each task's numbers, the macro average, the settings and what a reader should know."""
    tasks = {one.task: {**task_numbers(one), "notes": notes.get(one.task, [])} for one in results}
    macro = {
        name: asdict(stats.macro_average([_per_problem(one, name) for one in results]))
        for name in ("acc", "acc_lenient")
    }
    summary = {"tasks": tasks, "macro": macro, "settings": dict(settings), "left_out": dict(left_out or {})}
    return Report(summary, {one.task: one for one in results})


def task_numbers(result: Result) -> dict[str, Any]:
    """Everything a report says about one task; shares are between 0 and 1."""
    grades, generations, n = result.grades, result.generations, result.samples
    scores = result.scores
    correct = scores.sum(axis=1).astype(int)
    votes = [grades[i : i + n] for i in range(0, len(grades), n)]
    return {
        "problems": len(scores),
        "samples": n,
        "acc": asdict(stats.mean_over_problems(scores.mean(axis=1))),
        "acc_lenient": asdict(stats.mean_over_problems(_per_problem(result, "acc_lenient"))),
        "runs": stats.run_spread(scores),
        "pass_at": {str(k): float(np.mean([stats.pass_at(c, n, k) for c in correct])) for k in _ladder(n)},
        "majority": float(np.mean([stats.majority([g.answer for g in v], [g.correct for g in v]) for v in votes])),
        "no_answer": float(np.mean([grade.answer is None and not grade.ungraded for grade in grades])),
        "grading_failures": float(np.mean([grade.failure is not None for grade in grades])),
        "grading_timeouts": float(np.mean([grade.timed_out for grade in grades])),
        "truncated": float(np.mean([generation.finish == "length" for generation in generations])),
        **({"reading": result.reading, "readings": result.readings()} if result.reading else {}),
        "tokens": token_numbers(np.array([generation.tokens for generation in generations]), scores.ravel() > 0),
    }


def token_numbers(tokens: np.ndarray, correct: np.ndarray) -> dict[str, float | None]:
    """The lengths of responses: mean and quartiles, and the means of right and wrong ones (None without any)."""
    p25, p50, p75 = np.quantile(tokens, [0.25, 0.5, 0.75])
    means = {name: float(tokens[mask].mean()) if mask.any() else None for name, mask in
             (("correct", correct), ("wrong", ~correct))}  # fmt: skip
    return {"mean": float(tokens.mean()), "p25": float(p25), "p50": float(p50), "p75": float(p75), **means}


def _per_problem(result: Result, name: str) -> stats.Scores:
    lenient = [grade.lenient or grade.correct for grade in result.grades]
    scores = result.matrix(lenient) if name == "acc_lenient" else result.scores
    return np.asarray(scores.mean(axis=1))


def _ladder(n: int) -> list[int]:
    """1, 2, 4, … and n itself."""
    return sorted({2**power for power in range(n.bit_length()) if 2**power <= n} | {n})


COLUMNS = (
    "task", "N", "n", "accuracy [95 %]", "± s.e.", "lenient", "runs ±", "pass@n", "maj@n", "no answer", "cut off",
    "tokens",
)  # fmt: skip


def to_markdown(summary: Mapping[str, Any]) -> str:
    """The summary as a table in per cent, followed by what a reader should know."""
    notes = [f"- {note}" for note in notes_of(summary)]
    return "\n".join([*markdown_table(COLUMNS, table_rows(summary)), "", *notes, ""])


def table_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """One row per task and one for their average, under COLUMNS."""
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
    return [*rows, ["macro", "", "", *average, *[""] * 6]]


def notes_of(summary: Mapping[str, Any]) -> list[str]:
    notes = [note for task in summary["tasks"].values() for note in task["notes"]]
    notes += [f"{task} is left out: {why}." for task, why in summary.get("left_out", {}).items()]
    return list(dict.fromkeys(notes))


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
