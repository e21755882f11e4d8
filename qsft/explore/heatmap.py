"""The picture of an alignment: P(p_T | p_θ) as a heat map, what each target would pull at, the words behind it."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qsft.explore.alignment import facts, suggestions
from qsft.losses.sums import QUADRANTS
from qsft.page import GREEN, GREY, ORANGE, PAPER, PINK, SKY, figure, items, page, static, table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

NAMES = {"rescue": "Q1 rescue", "filter": "Q2 filter", "agree": "Q3 agree", "student_only": "Q4 student only"}
MEANINGS = {
    "rescue": "only the teacher finds the label likely: correction",
    "filter": "neither finds it likely: noise or free choice",
    "agree": "both find it likely: known already",
    "student_only": "only the student finds it likely",
}
COLOURS = {"rescue": GREEN, "filter": ORANGE, "agree": SKY, "student_only": PINK}
PATTERNS = {"rescue": "", "filter": "/", "agree": ".", "student_only": "x"}
CORNERS = {"rescue": (0.25, 0.84), "filter": (0.25, 0.15), "agree": (0.75, 0.84), "student_only": (0.75, 0.15)}


def alignment_figure(data: Mapping[str, Any]) -> "Figure":
    """P(p_T | p_θ) on the label: each column is the spread of the teacher's probability where the student's is that."""
    import plotly.graph_objects as go

    counts, high = np.array(data["histogram"]), data["high"]
    shares = counts / np.maximum(counts.sum(axis=0, keepdims=True), 1)
    filled = np.broadcast_to(counts.sum(axis=0) > 0, counts.shape)
    centres = ((np.arange(len(counts)) + 0.5) / len(counts)).round(4).tolist()
    bar = {"orientation": "h", "y": -0.2, "yanchor": "top", "thickness": 10, "tickformat": ".0%", "outlinewidth": 0}
    heat = go.Heatmap(
        x=centres,
        y=centres,
        z=np.where(filled, shares.round(4), np.full_like(shares, None, dtype=object)).tolist(),
        customdata=counts.tolist(),
        colorscale="Cividis",
        colorbar={**bar, "title": {"text": "share of the column", "side": "top", "font": {"size": 12}}},
        hovertemplate="p_θ %{x:.3f}, p_T %{y:.3f}<br>%{z:.1%} of the column, %{customdata} tokens<extra></extra>",
    )
    axis = {"range": [0, 1], "dtick": 0.25, "showgrid": False, "zeroline": False}
    line = {"type": "line", "line": {"color": "white", "width": 2, "dash": "dot"}}
    corner = {"showarrow": False, "bgcolor": PAPER, "borderpad": 4, "opacity": 0.92}
    layout = go.Layout(
        xaxis={**axis, "title": "student, p_θ(y)"},
        yaxis={**axis, "title": "teacher, p_T(y)"},
        shapes=[{**line, "x0": high, "x1": high, "y0": 0, "y1": 1}, {**line, "x0": 0, "x1": 1, "y0": high, "y1": high}],
        annotations=[
            {**corner, "x": x, "y": y, "text": f"<b>{NAMES[name]}</b><br>{100 * data['shares'][name]:.1f} %"}
            for name, (x, y) in CORNERS.items()
        ],
        margin={"t": 12},
    )
    return go.Figure(heat, layout)


def pull_figure(data: Mapping[str, Any]) -> "Figure":
    """How much probability each target asks to move per token, and in which quadrant."""
    import plotly.graph_objects as go

    pattern = {"fillmode": "overlay", "fgcolor": PAPER, "fgopacity": 0.7, "size": 6, "solidity": 0.25}
    bars = [
        go.Bar(
            y=list(data["targets"]),
            x=[effect["moved"] * effect["quadrants"][kind] for effect in data["targets"].values()],
            name=NAMES[kind],
            orientation="h",
            marker={"color": COLOURS[kind], "pattern": {**pattern, "shape": PATTERNS[kind]}},
            hovertemplate="%{y}, " + NAMES[kind] + ": %{x:.4f}<extra></extra>",
        )
        for kind in QUADRANTS
    ]
    x, y = {"title": "probability moved per label token"}, {"autorange": "reversed", "showgrid": False}
    return go.Figure(bars, go.Layout(xaxis=x, yaxis=y, barmode="stack", bargap=0.3, legend={"traceorder": "normal"}))


def reliability_figure(data: Mapping[str, Any]) -> "Figure":
    """How often the teacher's first choice is the label, over its probability; on the diagonal it is calibrated."""
    import plotly.graph_objects as go

    found = data["reliability"]
    claimed, borne_out = (np.array(found[name]) for name in ("claimed", "borne_out"))
    sizes = 6 + 18 * (np.array(found["count"]) / max(found["count"])) ** 0.5
    gap = {"array": (claimed - borne_out).clip(0).tolist(), "arrayminus": (borne_out - claimed).clip(0).tolist()}
    points = go.Scatter(
        x=found["claimed"],
        y=found["borne_out"],
        customdata=found["count"],
        mode="markers",
        name="teacher",
        marker={"color": GREEN, "size": sizes.tolist(), "opacity": 0.8},
        error_y={"type": "data", **gap, "symmetric": False, "width": 0, "thickness": 1, "color": GREEN},
        hovertemplate="claims %{x:.1%}, borne out %{y:.1%}, %{customdata:,} tokens<extra></extra>",
    )
    dotted = {"color": GREY, "dash": "dot"}
    diagonal = go.Scatter(x=[0, 1], y=[0, 1], mode="lines", line=dotted, hoverinfo="skip", name="calibrated")
    axis = {"range": [-0.03, 1.05], "dtick": 0.25, "tickformat": ".0%", "zeroline": False}
    x, y = ({**axis, "title": t} for t in ("what the teacher claims for its first choice", "how often the data agree"))
    return go.Figure([diagonal, points], go.Layout(xaxis=x, yaxis=y, legend={"traceorder": "normal"}))


def alignment_page(data: Mapping[str, Any], *, title: str = "Where teacher and student disagree") -> str:
    """The numbers of `measure_alignment` as HTML."""
    tiles = "".join(
        f'<div class="tile"><b data-kind="{name}">{100 * data["shares"][name]:.1f} %</b>'
        f"<span>{NAMES[name]}: {MEANINGS[name]}</span></div>"
        for name in QUADRANTS
    )
    caption = (
        "P(p_T | p_θ) on the label: where the student gives the label this probability (column), how likely the "
        "teacher finds it. The lines part the four kinds of token, the paper's Q1 to Q4."
    )
    body = (
        # What the slider changes on the page is counted from the heat map's bins.
        f'<div class="grid tiles">{tiles}</div>{_SLIDER.format(data["high"])}<div class="grid" style="margin-top:1rem">'
        + figure(alignment_figure(data), caption, height=540)
        + f'<section class="card words"><h2>In words</h2>{items(facts(data))}'
        + f"<h3>What that suggests</h3>{items(suggestions(data))}</section></div>"
        + _borne_out(data)
        + _effects(data)
        + '<h2>The words behind it</h2><div class="grid">'
        + "".join(f'<section class="card">{words}</section>' for words in _words(data))
        + "</div>"
    )
    lede = f"{data['label_tokens']:,} label tokens of {data['documents']:,} documents, before training."
    carried = {"histogram": data["histogram"], "names": NAMES, "corners": CORNERS}
    style, script = (static("qsft.explore", f"alignment.{kind}") for kind in ("css", "js"))
    return page(title, body, lede=lede, style=style, data=carried, script=script)


_SLIDER = """
<p><label for="high">A label counts as likely from <output id="high-value">{0:g}</output></label>
<input id="high" type="range" min="0.05" max="0.95" step="0.05" value="{0:g}">
<span class="note">moves the shares and the lines of the heat map; for words, targets and sentences run the command with
--high</span></p>
"""


def _borne_out(data: Mapping[str, Any]) -> str:
    found = data["reliability"]
    caption = (
        "Where the teacher's first choice has this probability, how often it is the label; the size of a dot is the "
        "number of tokens, its stem the gap to the claim. Below the diagonal either the teacher claims too much or the "
        "demonstrations slip."
    )
    claims = list(zip(found["claimed"], found["borne_out"], found["count"]))
    by_claim = table(("claimed", "borne out", "tokens"), claims, "The teacher's first choice, by its probability")
    least = table(
        ("token", "times chosen", "claimed minus borne out"),
        [(one["token"], one["claims"], one["excess"]) for one in found["doubted"]],
        "First choices of the teacher that the labels bear out least",
    )
    chart = figure(reliability_figure(data), caption, height=440, table=by_claim)
    return f'<h2>Is the teacher borne out?</h2><div class="grid">{chart}<section class="card">{least}</section></div>'


def _effects(data: Mapping[str, Any]) -> str:
    caption = (
        "½·Σ|scale·(p − Q)| per label token at the default hyper-parameters: how much probability a target asks to "
        "move, by kind of token."
    )
    numbers = table(
        ("target", "trains on", "moved per token", *(f"part on {NAMES[kind]}" for kind in QUADRANTS)),
        [(name, e["trains_on"], e["moved"], *e["quadrants"].values()) for name, e in data["targets"].items()],
        "Trains on: share of tokens at which at least 5 % of the probability is asked to move",
    )
    chart = figure(pull_figure(data), caption, height=90 + 26 * len(data["targets"]), table=numbers)
    return f"<h2>What each target would do with these tokens</h2>{chart}"


def _words(data: Mapping[str, Any]) -> Iterator[str]:
    for kind, words in data["words"].items():
        rows = [(word["token"], word["count"], f"{100 * word['count'] / word['of']:.0f} %") for word in words]
        yield table(("token", "times", "of its occurrences"), rows, f"Tokens that are most often {NAMES[kind]}")
