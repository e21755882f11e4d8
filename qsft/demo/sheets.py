"""The one report of the demo: its tables, charts and sentences, which the terminal, the page and the picture show."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from qsft.demo.results import BASE, LIMITS, QUICK, TOKENS, Line, Results, findings, ordering
from qsft.demo.world import ERRORS, KINDS
from qsft.page import BLUE, GREY, SKY

WORLDS = (
    "right: the demo's own world; wrong: a teacher that is sure that every product is one larger; half-wrong: the "
    "products of 0 to 4 only; clean: demonstrations without slips. ± is the standard error over seeds, or with a "
    "single seed over problems."
)


@dataclass(frozen=True)
class Chart:
    """Values of a sheet's rows: a single series as bars, several stacked, or (`points`) several as points.

    errors, colours   of a single series, by row
    dots              by series: (value, row's name) of every seed
    """

    unit: str
    series: dict[str, list[float]]
    errors: list[float] = field(default_factory=list)
    colours: list[str] = field(default_factory=list)
    dots: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    points: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table: `strong` is the first cell of the row to stress, `note` what one should know to read it."""

    heading: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str
    strong: str | None = None
    chart: Chart | None = None


class DemoReport(NamedTuple):
    """Everything there is to show, the first sheet as a picture too; `record` is what results.json holds."""

    sheets: list[Sheet]
    findings: list[str]
    commands: list[tuple[str, str]]  # what to type next, what it does
    record: dict[str, Any]


def report_of(results: Results) -> DemoReport:
    """The report of one world."""
    tables = [accuracy(results), first_errors(results), theory(results), demonstration(results)]
    return DemoReport(tables, findings(results), next_steps(results), results.record())


def report_of_worlds(worlds: Mapping[str, Results]) -> DemoReport:
    """The report of several worlds: one table, the order of the methods in each, then the tables of the first."""
    first = next(iter(worlds.values()))
    said = [QUICK]
    if not first.scenario.quick:
        said = [f"{name}: {text}" for name, one in worlds.items() for text in (findings(one)[0], ordering(one) + ".")]
        said.append(LIMITS)
    commands = [("qsft demo --wrong-teacher half", "one of these worlds alone, with every table")]
    record = {"findings": said, "worlds": {name: one.record() for name, one in worlds.items()}}
    return DemoReport([side_by_side(worlds), *report_of(first).sheets[1:]], said, commands, record)


def side_by_side(worlds: Mapping[str, Results]) -> Sheet:
    """Average@n of every model, a column for each world."""
    lines = {name: results.lines for name, results in worlds.items()}
    first = next(iter(worlds.values()))
    unit = f"Average@{first.scenario.samples} in %"
    return Sheet(
        "Four worlds",
        unit,
        ("model", *worlds),
        [(each[0].label, *map(_with_error, each)) for each in zip(*lines.values())],
        WORLDS,
        first.hero.label if first.hero else None,
        Chart(
            unit,
            {name: [line.average for line in each] for name, each in lines.items()},
            dots={name: _dots(each) for name, each in lines.items()},
            points=True,
        ),
    )


def accuracy(results: Results) -> Sheet:
    """Average@n, greedy and pass@n of every model."""
    scenario, seeds, lines = results.scenario, len(results.seeds), results.lines
    spread = f"over {seeds} seeds" if seeds > 1 else f"over {scenario.problems} problems"
    controls = {method.label: method.control for method in results.methods if method.control}
    notes = [f"± is the standard error {spread}; samples are drawn at temperature 1."]
    notes += [f"{label}: {control}, a control." for label, control in controls.items()]
    what = f"Average@{scenario.samples}"
    return Sheet(
        "Accuracy",
        "Accuracy in %",
        ("model", what, "greedy", f"pass@{scenario.samples}"),
        [(line.label, _with_error(line), f"{line.greedy:.1f}", f"{line.pass_at_n:.1f}") for line in lines],
        " ".join(notes),
        results.hero.label if results.hero else None,
        Chart(
            f"{what} in % (noise {scenario.noise:g}, {scenario.teacher} teacher)",
            {what: [line.average for line in lines]},
            errors=[line.standard_error for line in lines],
            colours=[SKY, SKY, *(GREY if line.label in controls else BLUE for line in lines[2:])],
            dots={what: _dots(lines)} if seeds > 1 else {},
        ),
    )


def first_errors(results: Results) -> Sheet:
    """Where sampled solutions first go wrong."""
    lines = results.lines
    return Sheet(
        "Why: the first error",
        "First error of a sampled solution, % of samples",
        ("model", *ERRORS),
        [(line.label, *(f"{line.errors[kind]:.1f}" for kind in ERRORS)) for line in lines],
        "+/− and ×: a wrong result by its operation; copying: a wrong operation, operand or answer; form: not a chain.",
        results.hero.label if results.hero else None,
        Chart("% of samples", {kind: [line.errors[kind] for line in lines] for kind in ERRORS}),
    )


def theory(results: Results) -> Sheet:
    """The probability of the right result of a step: closed form beside measurement."""
    asked = [(kind, what) for kind in KINDS for what in ("closed form", "measured")]
    return Sheet(
        "Theory beside it",
        "p(right result) of one step, %",
        ("method", *(f"{kind} {what}" for kind, what in asked)),
        [(m.label, *(_mean(results, m.label, kind, what) for kind, what in asked)) for m in results.methods],
        "Closed form: where expected training goes at a fixed context with labels d and teacher T. SFT: d; KD: "
        "c·T+(1−c)·d, a mixture; Target-SFT: ∝ T·(1−d)^(−1/η), a product of experts; a dash: none is known "
        "(the p-loss goes to a vertex).",
        results.hero.label if results.hero else None,
    )


def demonstration(results: Results) -> Sheet:
    """One demonstration token by token, and where more of them are."""
    shown, numbers = results.seeds[0].demonstration, ("student", "teacher", "gamma")
    noisy = "noisy " if any(token["slip"] for token in shown["tokens"]) else ""
    return Sheet(
        "One demonstration, token by token",
        f"One {noisy}demonstration, token by token: {shown['question']}",
        ("token", "p_θ", "p_T", "γ", "top of Q", ""),
        [
            (one["word"], *(f"{one[name]:.2f}" for name in numbers), one["favourite"],
             " ".join(filter(None, [one["tag"], "(slip)" if one["slip"] else ""])))
            for one in shown["tokens"]
        ],
        "p_θ: the base before fine-tuning; p_T: the teacher; γ: how far Target-SFT trusts the token; top of Q: "
        "the likeliest word of its target. rescue: the base finds the token unlikely, the teacher does not; filter: "
        f"both find it unlikely. More of them, coloured: {results.seeds[0].places[TOKENS]}",
    )  # fmt: skip


def next_steps(results: Results) -> list[tuple[str, str]]:
    """(command, what it does), what follows most naturally first, with the paths of this very run."""
    scenario, places = results.scenario, results.seeds[0].places
    done = {"--seeds 3": len(results.seeds) > 1, "--noise 0": scenario.noise == 0}
    done |= {"--wrong-teacher": scenario.teacher == "wrong"}
    steps = [
        ("qsft demo --seeds 3", "the same over three seeds"),
        ("qsft demo --noise 0", "clean demonstrations: does anything beat plain SFT?"),
        ("qsft demo --wrong-teacher", "a teacher that is sure and wrong"),
        ("qsft demo --targets sft target:eta=0.2 target:eta=1.0", "any rows of the table, here η varied"),
        ("qsft targets", "every published variant as a choice of (γ, π̃)"),
        ("qsft train demo", "the same Target-SFT model from a recipe; so does accelerate launch recipes/demo.yaml"),
        (
            f"qsft explore tokens --model {places[BASE]} --teacher_cache {places['teacher cache']}",
            "every token of the demonstrations, coloured by γ",
        ),
    ]
    return [(command, what) for command, what in steps if not done.get(command.removeprefix("qsft demo "))]


def _with_error(line: Line) -> str:
    return f"{line.average:.1f} ± {line.standard_error:.1f}"


def _dots(lines: list[Line]) -> list[tuple[float, str]]:
    return [(value, line.label) for line in lines for value in line.by_seed]


def _mean(results: Results, label: str, kind: str, what: str) -> str:
    """The mean over seeds of one entry of the comparison; a dash where a seed has none."""
    entries = [seed.closed_form[label][what] for seed in results.seeds]
    values = [entry[kind] for entry in entries if entry is not None and kind in entry]
    return f"{100 * sum(values) / len(values):.1f}" if values else "–"
