"""The one report of the demo, its tables, charts and sentences, and the three places that show it: a terminal, a page
that works offline, a picture for slides and READMEs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from qsft.demo.results import BASE, LIMITS, QUICK, TOKENS, Line, Results, findings, ordering
from qsft.demo.world import ERRORS, KINDS
from qsft.files import shown, write_json
from qsft.page import BLUE, COLORS, GREY, ORANGE, SKY, escape, figure, items, page, table, write_page

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BAR_WIDTH = 40
STYLES = {"rescue": "green", "filter": "red"}
LEDE = (
    "Clock arithmetic with noisy demonstrations: a small base, a teacher, and one model per choice of target "
    "Q = γ·δ_y + (1−γ)·π̃, trained and measured on this machine."
)


class Sheet(NamedTuple):
    """A table and its chart; `note` is what one should know to read them."""

    heading: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str
    chart: "Figure | None" = None


class DemoReport(NamedTuple):
    """Everything there is to show, the first sheet as a picture too; `record` is what results.json holds."""

    hero: str | None  # the row to stress in every sheet
    sheets: list[Sheet]
    findings: list[str]
    commands: list[tuple[str, str]]  # what to type next, what it does
    record: dict[str, Any]


def report_of(worlds: Mapping[str, Results]) -> DemoReport:
    """The report of a world; of several: one table, the order of the methods in each, then the tables of the first."""
    first, said = next(iter(worlds.values())), [QUICK]
    sheets = [accuracy(first), first_errors(first), theory(first), demonstration(first)]
    if len(worlds) == 1:
        return DemoReport(first.hero, sheets, findings(first), next_steps(first), first.record())
    if not first.scenario.quick:
        said = [f"{name}: {text}" for name, one in worlds.items() for text in (findings(one)[0], ordering(one) + ".")]
        said.append(LIMITS)
    commands = [("qsft demo --wrong-teacher half", "one of these worlds alone, with every table")]
    record = {"findings": said, "worlds": {name: one.record() for name, one in worlds.items()}}
    return DemoReport(first.hero, [side_by_side(worlds), *sheets[1:]], said, commands, record)


# ---- the tables ----


def side_by_side(worlds: Mapping[str, Results]) -> Sheet:
    lines = {name: results.lines for name, results in worlds.items()}
    unit = f"Average@{next(iter(worlds.values())).scenario.samples} in %"
    return Sheet(
        "Four worlds",
        unit,
        ("model", *worlds),
        [(each[0].label, *map(_with_error, each)) for each in zip(*lines.values())],
        "right: the demo's own world; wrong: a teacher that is sure that every product is one larger; half-wrong: the "
        "products of 0 to 4 only; clean: demonstrations without slips. ± is the standard error over seeds, or with a "
        "single seed over problems.",
        as_chart(unit, lines, dots=True),
    )


def accuracy(results: Results) -> Sheet:
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
        as_chart(
            f"{what} in % (noise {scenario.noise:g}, {scenario.teacher} teacher)",
            {what: lines},
            dots=seeds > 1,
            colours=[SKY, SKY, *(GREY if line.label in controls else BLUE for line in lines[2:])],
        ),
    )


def first_errors(results: Results) -> Sheet:
    lines = results.lines
    return Sheet(
        "Why: the first error",
        "First error of a sampled solution, % of samples",
        ("model", *ERRORS),
        [(line.label, *(f"{line.errors[kind]:.1f}" for kind in ERRORS)) for line in lines],
        "+/− and ×: a wrong result by its operation; copying: a wrong operation, operand or answer; form: not a chain.",
        as_chart("% of samples", dict.fromkeys(ERRORS, lines)),
    )


def theory(results: Results) -> Sheet:
    def mean(label: str, kind: str, what: str) -> str:
        values = [known[kind] for seed in results.seeds if kind in (known := seed.closed_form[label][what] or {})]
        return f"{100 * sum(values) / len(values):.1f}" if values else "–"

    asked = [(kind, what) for kind in KINDS for what in ("closed form", "measured")]
    return Sheet(
        "Theory beside it",
        "p(right result) of one step, %",
        ("method", *(f"{kind} {what}" for kind, what in asked)),
        [(m.label, *(mean(m.label, kind, what) for kind, what in asked)) for m in results.methods],
        "Closed form: where expected training goes at a fixed context with labels d and teacher T. SFT: d; KD: "
        "c·T+(1−c)·d, a mixture; Target-SFT: ∝ T·(1−d)^(−1/η), a product of experts; a dash: none is known "
        "(the p-loss goes to a vertex).",
    )


def demonstration(results: Results) -> Sheet:
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
    explore = f"qsft explore tokens --model {places[BASE]} --teacher_cache {places['teacher cache']}"
    varied = "qsft demo --targets sft target_sft:eta=0.2 target_sft:eta=1.0"
    recipe = "the same Target-SFT model from a recipe; so does accelerate launch recipes/demo.yaml"
    steps = {
        "qsft demo --seeds 3": len(results.seeds) == 1 and "the same over three seeds",
        "qsft demo --noise 0": scenario.noise != 0 and "clean demonstrations: does anything beat plain SFT?",
        "qsft demo --wrong-teacher": scenario.teacher != "wrong" and "a teacher that is sure and wrong",
        varied: "any rows of the table, here η varied",
        "qsft targets": "every published variant as a choice of (γ, π̃)",
        "qsft train demo": recipe,
        explore: "every token of the demonstrations, coloured by γ",
    }
    return [(command, what) for command, what in steps.items() if what]


def _with_error(line: Line) -> str:
    return f"{line.average:.1f} ± {line.standard_error:.1f}"


def as_chart(
    unit: str, series: Mapping[str, list[Line]], *, dots: bool = False, colours: list[str] | None = None
) -> "Figure":
    """By series a value of each line: its share of the errors of that name, stacked, or its average.

    Averages are bars, of several series points; `dots` are its seeds.
    """
    import plotly.graph_objects as go

    fig, alone = go.Figure(), len(series) == 1
    for colour, (name, lines) in zip(COLORS, series.items()):
        labels, values = zip(*((line.label, line.errors.get(name, line.average)) for line in lines))
        hover = f"%{{y}}, {name}: %{{x:.1f}} %<extra></extra>"
        shared: dict[str, Any] = {"name": name, "x": values, "y": labels, "hovertemplate": hover}
        if alone:
            shared["error_x"] = {"type": "data", "array": [line.standard_error for line in lines], "color": GREY}
            shared |= {"text": [f"{value:.1f}" for value in values], "textposition": "inside"}
        if dots and not alone:
            fig.add_scatter(**shared, mode="markers", marker={"color": colour, "size": 13})
        else:
            fig.add_bar(**shared, marker={"color": colours or colour}, orientation="h", insidetextanchor="start")
        if dots:
            x, y = zip(*((value, line.label) for line in lines for value in line.by_seed))
            small = {"color": ORANGE if alone else colour, "size": 6, "opacity": 0.6}
            fig.add_scatter(x=x, y=y, mode="markers", name="one seed", marker=small, showlegend=alone)
    axes = {"xaxis": {"title": {"text": unit}, "rangemode": "tozero"}, "yaxis": {"autorange": "reversed"}}
    return fig.update_layout(**axes, barmode="stack", legend={"traceorder": "normal"}, showlegend=len(fig.data) > 1)


# ---- where it is shown ----


def present(report: DemoReport, out: Path, console: Console) -> None:
    """Show a report and leave it in `out`: results.json, index.html, accuracy.png."""
    for sheet in report.sheets:
        console.print("", as_table(sheet, report.hero), sep="\n")
    console.print("\n[bold]What this says[/bold]")
    for sentence in report.findings:
        console.print(f"  • {sentence}", highlight=False)
    write_json(out / "results.json", report.record)
    write_page(out / "index.html", webpage(report))
    written = ["results.json", "index.html"]
    if write_picture(report.sheets[0].chart, out / "accuracy.png"):
        written.append("accuracy.png")
    else:
        console.print("accuracy.png was left out: it needs matplotlib (pip install 'qsft[demo]').", markup=False)
    console.print("\n[bold]Written[/bold]", *(f"  {shown(out)}/{name}" for name in written), sep="\n", highlight=False)
    console.print("\n[bold]What to run next[/bold]")
    for command, what in report.commands:
        console.print(f"  {command}\n      [dim]{what}[/dim]", highlight=False, soft_wrap=True)


def as_table(sheet: Sheet, strong: str | None) -> RenderableType:
    """A sheet for the terminal, with its bars if it has one series of them and its note below."""
    grid = Table(*sheet.columns)
    for column in grid.columns[1:]:
        column.justify = "right" if column.header else "left"
    bars = [trace.x for trace in sheet.chart.data if trace.type == "bar"] if sheet.chart else []
    values = bars[0] if len(bars) == 1 else []
    if values:
        grid.add_column("")
    for i, row in enumerate(sheet.rows):
        style = "bold" if row[0] == strong else STYLES.get(row[-1].split(" ")[0], "")
        bar = [Bar(100, 0, values[i], width=BAR_WIDTH, color="cyan")] if values else []
        grid.add_row(*map(Text, row), *bar, style=style)
    return Group(Text(sheet.title, style="bold"), grid, Text(sheet.note, style="dim"))


def webpage(report: DemoReport) -> str:
    body = f"<h2>What this says</h2>{items(report.findings)}"
    for sheet in report.sheets:
        body += f"<h2>{escape(sheet.heading)}</h2>"
        if sheet.chart:
            body += figure(sheet.chart, f"{sheet.title}. {sheet.note}", height=380)
        body += table(sheet.columns, sheet.rows, sheet.title) + f'<p class="note">{escape(sheet.note)}</p>'
    body += "<h2>What to run next</h2>" + table(("command", "what it does"), report.commands)
    return page("The paper's effect in a small world", body, lede=LEDE)


def write_picture(chart: Any, path: Path) -> bool:
    """Write a chart of bars or points as a PNG; False without matplotlib, which comes with the extra `demo`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    first, *others = chart.data
    picture = Figure(figsize=(7.2, 0.6 + 0.42 * len(first.y)), dpi=160, layout="constrained")
    axes: Any = picture.add_subplot()
    if first.type == "bar":
        whiskers = {"xerr": first.error_x.array, "error_kw": {"ecolor": "#333333", "capsize": 2}}
        axes.barh(first.y, first.x, color=first.marker.color, **whiskers)
        for label, value, error in zip(first.y, first.x, first.error_x.array):
            end = max([value + error, *(x for dots in others for x, of in zip(dots.x, dots.y) if of == label)])
            axes.text(end + 1, label, f"{value:.1f}", va="center", fontsize=9)
    for dots in chart.data if first.type == "scatter" else others:
        look = {"color": dots.marker.color, "markersize": dots.marker.size / 2, "alpha": dots.marker.opacity}
        axes.plot(dots.x, dots.y, "o", **look, label=dots.name if dots.showlegend is None else None)
    if first.type == "scatter":
        axes.legend(frameon=False)
    axes.set(xlim=(0, 108), xlabel=chart.layout.xaxis.title.text)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(path)
    return True
