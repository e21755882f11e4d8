"""The results as one HTML page that works offline: chart, tables, findings, what to run next."""

from typing import TYPE_CHECKING

from qsft.demo.reading import ERRORS
from qsft.demo.results import Results
from qsft.demo.sheets import Sheet, accuracy, demonstration, first_errors, theory
from qsft.demo.xray import FILTER, RESCUE
from qsft.page import BLUE, COLOURS, SKY, escape, figure, page, table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

GREY, ERROR_BAR = "#9aa3ad", "#6b737d"
LEDE = (
    "Clock arithmetic with noisy demonstrations: a small base, a teacher, and one model per choice of target "
    "Q = γ·δ_y + (1−γ)·π̃, trained and measured on this machine."
)
STYLE = """
.tokens { line-height: 2.3; }
.token { padding: 0.2rem 0.45rem; border-radius: 6px; border: 1px solid var(--line); font-family: var(--mono); }
.token.rescue { background: var(--accent-soft); border-color: var(--accent); }
.token.filter { background: var(--warm-soft); border-color: var(--warm); text-decoration: line-through; }
"""


def webpage(results: Results, findings: list[str], commands: list[tuple[str, str]]) -> str:
    """The whole page; `commands` are (what to type, what it does)."""
    scores, errors = accuracy(results), first_errors(results)
    body = [
        "<h2>What this says</h2><ul>" + "".join(f"<li>{escape(one)}</li>" for one in findings) + "</ul>",
        "<h2>Accuracy</h2>",
        figure(_bars(results), f"{scores.columns[1]} of every model in %. {scores.note}", height=380),
        as_html(scores),
        "<h2>Why: the first error</h2>",
        figure(_stacks(results), f"{errors.title}. {errors.note}", height=380),
        as_html(errors),
        "<h2>Theory beside it</h2>",
        as_html(theory(results)),
        "<h2>One demonstration, token by token</h2>",
        _tokens(results),
        as_html(demonstration(results)),
        "<h2>What to run next</h2>",
        table(("command", "what it does"), commands),
    ]
    return page("The paper's effect in a small world", "\n".join(body), lede=LEDE, style=STYLE)


def as_html(sheet: Sheet) -> str:
    """A table of words for the page."""
    return table(sheet.columns, sheet.rows, sheet.title) + f'<p class="note">{escape(sheet.note)}</p>'


def _bars(results: Results) -> "Figure":
    import plotly.graph_objects as go

    lines = [results.line(label) for label in results.labels]
    colours = {method.label: GREY if method.control else BLUE for method in results.methods}
    bars = go.Bar(
        x=[line.average for line in lines],
        y=[line.label for line in lines],
        error_x={"type": "data", "array": [line.standard_error for line in lines], "color": ERROR_BAR},
        marker={"color": [colours.get(line.label, SKY) for line in lines]},
        text=[f"{line.average:.1f}" for line in lines],
        textposition="inside",
        insidetextanchor="start",
        insidetextfont={"color": ["white" if colours.get(line.label) == BLUE else "black" for line in lines]},
        orientation="h",
        hovertemplate="%{y}: %{x:.1f} %<extra></extra>",
    )
    layout = {"xaxis": {"range": [0, 104], "title": {"text": "%"}}, "yaxis": {"autorange": "reversed"}}
    return go.Figure(bars, layout)


def _stacks(results: Results) -> "Figure":
    import plotly.graph_objects as go

    lines = [results.line(label) for label in results.labels]
    bars = [
        go.Bar(
            name=kind,
            x=[line.errors[kind] for line in lines],
            y=[line.label for line in lines],
            marker={"color": colour},
            orientation="h",
            hovertemplate=f"%{{y}}, {kind}: %{{x:.1f}} %<extra></extra>",
        )
        for kind, colour in zip(ERRORS, COLOURS)
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "% of samples"}},
        "yaxis": {"autorange": "reversed"},
        "legend": {"traceorder": "normal"},
    }
    return go.Figure(bars, layout)


def _tokens(results: Results) -> str:
    """The solution as words, rescued and filtered ones marked."""
    shown = results.seeds[0].demonstration
    words = "\n".join(
        f'<span class="token {token.tag if token.tag in (RESCUE, FILTER) else ""}" '
        f'title="p_θ {token.student:.2f}, p_T {token.teacher:.2f}, γ {token.gamma:.2f}">{escape(token.word)}</span>'
        for token in shown.tokens
    )
    legend = '<span class="token rescue">rescue</span> <span class="token filter">filter</span>'
    return f'<p class="mono">{escape(shown.question)}</p><p class="tokens">{words}</p><p class="note">{legend}</p>'
