"""The report of the demo: tables, charts, findings and commands to run next. `show_report` shows it."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from qsft.demo.findings import LIMITS, SMOKE_TEST, findings, ranking
from qsft.demo.results import TEACHER_CACHE, TOKENS_PAGE, Line, Results
from qsft.demo.task import ERRORS, KINDS
from qsft.page import BLUE, COLORS, GRAY, ORANGE, SKY
from qsft.run_directory import BASE

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


class Sheet(NamedTuple):
    """A table with its chart; `note` explains how to read them."""

    heading: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str
    chart: "Figure | None" = None


class NextCommand(NamedTuple):
    """A command to run next, and what it does."""

    command: str
    purpose: str


class DemoReport(NamedTuple):
    """Everything that is shown.

    Args:
        emphasized: the label whose row is stressed in every sheet.
        record: the content of results.json.
    """

    emphasized: str | None
    sheets: list[Sheet]
    findings: list[str]
    commands: list[NextCommand]
    record: dict[str, Any]


def make_report(results: Mapping[str, Results]) -> DemoReport:
    """Return the report of one scenario or several (by name).

    Several share one accuracy table; the other tables are those of the first scenario.
    """
    first = next(iter(results.values()))
    details = [first_errors_sheet(first), closed_form_sheet(first), demonstration_sheet(first)]
    if len(results) == 1:
        sentences = findings(first)
        return DemoReport(
            first.target_sft_label,
            [accuracy_sheet(first), *details],
            sentences,
            next_commands(first),
            {**first.as_record(), "findings": sentences},
        )
    sentences = _findings_of_scenarios(results)
    records = {name: {**one.as_record(), "findings": findings(one)} for name, one in results.items()}
    return DemoReport(
        first.target_sft_label,
        [scenarios_sheet(results), *details],
        sentences,
        [NextCommand("qsft demo --wrong_teacher half", "one of these scenarios alone, with every table")],
        {"findings": sentences, "scenarios": records},
    )


def _findings_of_scenarios(results: Mapping[str, Results]) -> list[str]:
    if any(one.scenario.quick for one in results.values()):
        return [SMOKE_TEST]
    sentences = []
    for name, one in results.items():
        sentences.append(f"{name}: {findings(one)[0]}")
        sentences.append(f"{name}: {ranking(one)}.")
    return [*sentences, LIMITS]


def scenarios_sheet(results: Mapping[str, Results]) -> Sheet:
    """Return the accuracy of every model in every scenario."""
    lines = {name: one.lines for name, one in results.items()}
    samples = next(iter(results.values())).scenario.samples
    unit = f"Average@{samples} in %"
    rows = []
    for lines_of_model in zip(*lines.values()):
        rows.append((lines_of_model[0].label, *(_with_error(line) for line in lines_of_model)))
    return Sheet(
        "Scenarios",
        unit,
        ("model", *results),
        rows,
        "right: the demo's default; wrong: the teacher is sure that every product is one larger; half-wrong: only the "
        "products of 0 to 4; clean: demonstrations without slips. ± is the standard error over seeds, or over problems "
        "with a single seed.",
        _points_chart(unit, lines),
    )


def accuracy_sheet(results: Results) -> Sheet:
    """Return the accuracy of every model."""
    scenario = results.scenario
    seeds = len(results.seeds)
    lines = results.lines
    controls = {method.label: method.control for method in results.methods if method.control}
    spread = f"over {seeds} seeds" if seeds > 1 else f"over {scenario.problems} problems"
    notes = [f"± is the standard error {spread}; samples are drawn at temperature 1."]
    notes += [f"{label}: {control}, a control." for label, control in controls.items()]
    average = f"Average@{scenario.samples}"
    colors = [SKY, SKY]  # base and teacher
    colors += [GRAY if line.label in controls else BLUE for line in results.method_lines]
    return Sheet(
        "Accuracy",
        "Accuracy in %",
        ("model", average, "greedy", f"pass@{scenario.samples}"),
        [(line.label, _with_error(line), f"{line.greedy:.1f}", f"{line.pass_at_n:.1f}") for line in lines],
        " ".join(notes),
        _bar_chart(
            f"{average} in % (noise {scenario.noise:g}, {scenario.teacher} teacher)", average, lines, colors, seeds > 1
        ),
    )


def first_errors_sheet(results: Results) -> Sheet:
    """Return how often each kind of error comes first in a sampled solution."""
    return Sheet(
        "Why: the first error",
        "First error of a sampled solution, % of samples",
        ("model", *ERRORS),
        [(line.label, *(f"{line.errors[kind]:.1f}" for kind in ERRORS)) for line in results.lines],
        "+/− and ×: a wrong result by its operation; copying: a wrong operation, operand or answer; form: not a chain.",
        _errors_chart(results.lines),
    )


def closed_form_sheet(results: Results) -> Sheet:
    """Return the probability of a right result in theory and as measured."""
    columns = [(kind, source) for kind in KINDS for source in ("closed form", "measured")]
    rows = []
    for method in results.methods:
        cells = [_mean_probability(results, method.label, kind, source) for kind, source in columns]
        rows.append((method.label, *cells))
    return Sheet(
        "Theory and measurement",
        "p(right result) of one step, %",
        ("method", *(f"{kind} {source}" for kind, source in columns)),
        rows,
        "Closed form: where expected training goes at a fixed context with labels d and teacher T. SFT: d; KD: "
        "c·T+(1−c)·d, a mixture; Target-SFT: ∝ T·(1−d)^(−1/η), a product of experts; a dash: none is known "
        "(DFT ends at one token).",
    )


def _mean_probability(results: Results, label: str, kind: str, source: str) -> str:
    values = []
    for seed in results.seeds:
        known = seed.closed_form[label][source]
        if known is not None and kind in known:
            values.append(known[kind])
    return f"{100 * fmean(values):.1f}" if values else "–"


def demonstration_sheet(results: Results) -> Sheet:
    """Return one demonstration token by token."""
    demonstration = results.seeds[0].demonstration
    rows = []
    for token in demonstration["tokens"]:
        remarks = [token["tag"]] if token["tag"] else []
        if token["slip"]:
            remarks.append("(slip)")
        rows.append(
            (
                token["word"],
                f"{token['student']:.2f}",
                f"{token['teacher']:.2f}",
                f"{token['gamma']:.2f}",
                token["top_of_q"],
                " ".join(remarks),
            )
        )
    has_slip = any(token["slip"] for token in demonstration["tokens"])
    kind = "noisy demonstration" if has_slip else "demonstration"
    return Sheet(
        "One demonstration, token by token",
        f"One {kind}, token by token: {demonstration['question']}",
        ("token", "p_θ", "p_T", "γ", "top of Q", ""),
        rows,
        "p_θ: the base before fine-tuning; p_T: the teacher; γ: how far Target-SFT trusts the token; top of Q: "
        "the likeliest word of its target. rescue: the base finds the token unlikely, the teacher does not; filter: "
        f"both find it unlikely. More of them, colored: {results.seeds[0].paths[TOKENS_PAGE]}",
    )


def next_commands(results: Results) -> list[NextCommand]:
    """Return commands to run next, with the paths of this run."""
    scenario = results.scenario
    paths = results.seeds[0].paths
    commands = []
    if len(results.seeds) == 1:
        commands.append(NextCommand("qsft demo --seeds 3", "the same over three seeds"))
    if scenario.noise != 0:
        commands.append(NextCommand("qsft demo --noise 0", "clean demonstrations: does anything beat plain SFT?"))
    if scenario.teacher != "wrong":
        commands.append(NextCommand("qsft demo --wrong_teacher", "a teacher that is sure and wrong"))
    commands += [
        NextCommand(
            "qsft demo --targets sft target_sft:eta=0.2 target_sft:eta=1.0", "any named targets, here with other η"
        ),
        NextCommand("qsft targets", "every published variant as a choice of (γ, π̃)"),
        NextCommand(
            "qsft train demo", "the same Target-SFT model from a recipe; so does accelerate launch recipes/demo.yaml"
        ),
        NextCommand(
            f"qsft explore tokens --model_name_or_path {paths[BASE]} --teacher_cache {paths[TEACHER_CACHE]}",
            "every token of the demonstrations, colored by γ",
        ),
    ]
    return commands


def _with_error(line: Line) -> str:
    return f"{line.average:.1f} ± {line.standard_error:.1f}"


def _bar_chart(unit: str, name: str, lines: list[Line], colors: list[str], show_seeds: bool) -> "Figure":
    """Return one bar per line with its standard error; the seeds as dots."""
    import plotly.graph_objects as go

    fig = go.Figure()
    fig.add_bar(
        name=name,
        x=[line.average for line in lines],
        y=[line.label for line in lines],
        text=[f"{line.average:.1f}" for line in lines],
        textposition="inside",
        insidetextanchor="start",
        error_x={"type": "data", "array": [line.standard_error for line in lines], "color": GRAY},
        hovertemplate=_hover(name),
        marker={"color": colors},
        orientation="h",
    )
    if show_seeds:
        _add_seeds(fig, lines, ORANGE, showlegend=True)
    return _with_layout(fig, unit)


def _points_chart(unit: str, series: Mapping[str, list[Line]]) -> "Figure":
    """Return one point per line of every series; the seeds as smaller dots."""
    import plotly.graph_objects as go

    fig = go.Figure()
    for color, (name, lines) in zip(COLORS, series.items()):
        fig.add_scatter(
            name=name,
            x=[line.average for line in lines],
            y=[line.label for line in lines],
            hovertemplate=_hover(name),
            mode="markers",
            marker={"color": color, "size": 13},
        )
        _add_seeds(fig, lines, color, showlegend=False)
    return _with_layout(fig, unit)


def _errors_chart(lines: list[Line]) -> "Figure":
    """Return the shares of first errors as stacked bars."""
    import plotly.graph_objects as go

    fig = go.Figure()
    for color, kind in zip(COLORS, ERRORS):
        fig.add_bar(
            name=kind,
            x=[line.errors[kind] for line in lines],
            y=[line.label for line in lines],
            hovertemplate=_hover(kind),
            marker={"color": color},
            orientation="h",
        )
    return _with_layout(fig, "% of samples")


def _add_seeds(fig: "Figure", lines: list[Line], color: str, *, showlegend: bool) -> None:
    points = [(value, line.label) for line in lines for value in line.by_seed]
    fig.add_scatter(
        x=[value for value, _ in points],
        y=[label for _, label in points],
        mode="markers",
        name="one seed",
        marker={"color": color, "size": 6, "opacity": 0.6},
        showlegend=showlegend,
    )


def _hover(name: str) -> str:
    return f"%{{y}}, {name}: %{{x:.1f}} %<extra></extra>"


def _with_layout(fig: "Figure", unit: str) -> "Figure":
    return fig.update_layout(
        xaxis={"title": {"text": unit}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
        barmode="stack",
        legend={"traceorder": "normal"},
        showlegend=len(fig.data) > 1,
    )
