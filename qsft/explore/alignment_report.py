"""The page of an alignment: P(p_T | p_θ) as a heat map, the teacher's calibration, what each target would change."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from qsft.explore.alignment_summary import facts, suggestions
from qsft.losses.sums import QUADRANTS
from qsft.page import GRAY, GREEN, ORANGE, PAPER, PINK, SKY, figure, items, page, static, table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

NAMES = {"rescue": "Q1 rescue", "filter": "Q2 filter", "agree": "Q3 agree", "student_only": "Q4 student only"}
MEANINGS = {
    "rescue": "only the teacher finds the label likely (correction)",
    "filter": "neither finds it likely (noise or free choice)",
    "agree": "both find it likely (already known)",
    "student_only": "only the student finds it likely",
}
QUADRANT_COLORS = {"rescue": GREEN, "filter": ORANGE, "agree": SKY, "student_only": PINK}
PATTERNS = {"rescue": "", "filter": "/", "agree": ".", "student_only": "x"}
CORNERS = {"rescue": (0.25, 0.84), "filter": (0.25, 0.15), "agree": (0.75, 0.84), "student_only": (0.75, 0.15)}
SLIDER = """
<p><label for="high">A label counts as likely from <output id="high-value">{0:g}</output></label>
<input id="high" type="range" min="0.05" max="0.95" step="0.05" value="{0:g}">
<span class="note">changes the shares and the lines of the heat map; for the rest of the page run the command with
<code class="option">--high</code></span></p>
"""


def alignment_figure(data: Mapping[str, Any]) -> "Figure":
    """Return P(p_T | p_θ) on the label: a column is the distribution of p_T where p_θ has that value."""
    import plotly.graph_objects as go

    counts = np.array(data["histogram"])
    high = data["high"]
    column_totals = counts.sum(axis=0)
    shares = (counts / np.maximum(column_totals, 1)).round(4).astype(object)
    shares[:, column_totals == 0] = None
    centers = ((np.arange(len(counts)) + 0.5) / len(counts)).round(4).tolist()
    heat = go.Heatmap(
        x=centers,
        y=centers,
        z=shares.tolist(),
        customdata=counts.tolist(),
        colorscale="Cividis",
        colorbar={
            "orientation": "h",
            "y": -0.2,
            "yanchor": "top",
            "thickness": 10,
            "tickformat": ".0%",
            "outlinewidth": 0,
            "title": {"text": "share of the column", "side": "top", "font": {"size": 12}},
        },
        hovertemplate="p_θ %{x:.3f}, p_T %{y:.3f}<br>%{z:.1%} of the column, %{customdata} tokens<extra></extra>",
    )
    axis = {"range": [0, 1], "dtick": 0.25, "showgrid": False, "zeroline": False}
    line = {"type": "line", "line": {"color": "white", "width": 2, "dash": "dot"}}
    corner = {"showarrow": False, "bgcolor": PAPER, "borderpad": 4, "opacity": 0.92}
    layout = go.Layout(
        xaxis={**axis, "title": "student, p_θ(y)"},
        yaxis={**axis, "title": "teacher, p_T(y)"},
        shapes=[
            {**line, "x0": high, "x1": high, "y0": 0, "y1": 1},
            {**line, "x0": 0, "x1": 1, "y0": high, "y1": high},
        ],
        annotations=[
            {**corner, "x": x, "y": y, "text": f"<b>{NAMES[name]}</b><br>{100 * data['shares'][name]:.1f} %"}
            for name, (x, y) in CORNERS.items()
        ],
        margin={"t": 12},
    )
    return go.Figure(heat, layout)


def pull_figure(data: Mapping[str, Any]) -> "Figure":
    """Return how much probability each target moves per token, by quadrant."""
    import plotly.graph_objects as go

    pattern = {"fillmode": "overlay", "fgcolor": PAPER, "fgopacity": 0.7, "size": 6, "solidity": 0.25}
    bars = [
        go.Bar(
            y=list(data["targets"]),
            x=[effect["moved"] * effect["quadrants"][kind] for effect in data["targets"].values()],
            name=NAMES[kind],
            orientation="h",
            marker={"color": QUADRANT_COLORS[kind], "pattern": {**pattern, "shape": PATTERNS[kind]}},
            hovertemplate="%{y}, " + NAMES[kind] + ": %{x:.4f}<extra></extra>",
        )
        for kind in QUADRANTS
    ]
    layout = go.Layout(
        xaxis={"title": "probability moved per label token"},
        yaxis={"autorange": "reversed", "showgrid": False},
        barmode="stack",
        bargap=0.3,
        legend={"traceorder": "normal"},
    )
    return go.Figure(bars, layout)


def reliability_figure(data: Mapping[str, Any]) -> "Figure":
    """Return how often the teacher's first choice is the label, over its probability; calibrated is the diagonal."""
    import plotly.graph_objects as go

    reliability = data["reliability"]
    gap = np.array(reliability["confidence"]) - np.array(reliability["accuracy"])
    sizes = 6 + 18 * (np.array(reliability["count"]) / max(reliability["count"])) ** 0.5
    diagonal = go.Scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": GRAY, "dash": "dot"}, hoverinfo="skip", name="calibrated"
    )
    points = go.Scatter(
        x=reliability["confidence"],
        y=reliability["accuracy"],
        customdata=reliability["count"],
        mode="markers",
        name="teacher",
        marker={"color": GREEN, "size": sizes.tolist(), "opacity": 0.8},
        error_y={
            "type": "data",
            "array": gap.clip(0).tolist(),
            "arrayminus": (-gap).clip(0).tolist(),
            "symmetric": False,
            "width": 0,
            "thickness": 1,
            "color": GREEN,
        },
        hovertemplate="confidence %{x:.1%}, accuracy %{y:.1%}, %{customdata:,} tokens<extra></extra>",
    )
    axis = {"range": [-0.03, 1.05], "dtick": 0.25, "tickformat": ".0%", "zeroline": False}
    layout = go.Layout(
        xaxis={**axis, "title": "probability of the teacher's first choice"},
        yaxis={**axis, "title": "how often it is the label"},
        legend={"traceorder": "normal"},
    )
    return go.Figure([diagonal, points], layout)


def alignment_page(data: Mapping[str, Any], *, title: str = "Where teacher and student disagree") -> str:
    """Return the numbers of `measure_alignment` as HTML."""
    tiles = "".join(
        f'<div class="tile"><b data-kind="{name}">{100 * data["shares"][name]:.1f} %</b>'
        f"<span>{NAMES[name]}: {MEANINGS[name]}</span></div>"
        for name in QUADRANTS
    )
    caption = (
        "P(p_T | p_θ) on the label: where the student gives the label this probability (column), how likely the "
        "teacher finds it. The lines separate the four kinds of token, the paper's Q1 to Q4."
    )
    body = (
        f'<div class="grid tiles">{tiles}</div>'
        + SLIDER.format(data["high"])
        + '<div class="grid" style="margin-top:1rem">'
        + figure(alignment_figure(data), caption, height=540)
        + f'<section class="card words"><h2>In words</h2>{items(facts(data))}'
        + f"<h3>What this suggests</h3>{items(suggestions(data))}</section></div>"
        + _calibration_section(data)
        + _targets_section(data)
        + _tokens_section(data)
    )
    return page(
        title,
        body,
        lede=f"{data['label_tokens']:,} label tokens of {data['documents']:,} documents, before training.",
        style=static("qsft.explore", "alignment.css"),
        # The slider counts from the bins of the heat map.
        data={"histogram": data["histogram"], "names": NAMES, "corners": CORNERS},
        script=static("qsft.explore", "alignment.js"),
    )


def _calibration_section(data: Mapping[str, Any]) -> str:
    reliability = data["reliability"]
    caption = (
        "Where the teacher's first choice has this probability, how often it is the label. The size of a dot is the "
        "number of tokens; its line is the distance to the diagonal. Below the diagonal either the teacher is "
        "overconfident or the demonstrations have mistakes."
    )
    by_confidence = table(
        ("confidence", "accuracy", "tokens"),
        list(zip(reliability["confidence"], reliability["accuracy"], reliability["count"])),
        "The teacher's first choice, by its probability",
    )
    overconfident = table(
        ("token", "times chosen", "confidence minus accuracy, summed"),
        [(token["token"], token["count"], token["excess"]) for token in reliability["overconfident"]],
        "First choices of the teacher that agree least with the labels",
    )
    chart = figure(reliability_figure(data), caption, height=440, table=by_confidence)
    return (
        "<h2>Is the teacher calibrated?</h2>"
        f'<div class="grid">{chart}<section class="card">{overconfident}</section></div>'
    )


def _targets_section(data: Mapping[str, Any]) -> str:
    caption = (
        "½·Σ|scale·(p − Q)| per label token at the default hyper-parameters: how much probability a target moves, by "
        "kind of token."
    )
    rows = []
    for name, effect in data["targets"].items():
        rows.append((name, effect["trains_on"], effect["moved"], *(effect["quadrants"][kind] for kind in QUADRANTS)))
    numbers = table(
        ("target", "trains on", "moved per token", *(f"part on {NAMES[kind]}" for kind in QUADRANTS)),
        rows,
        "Trains on: share of tokens at which at least 5 % of the probability is moved",
    )
    chart = figure(pull_figure(data), caption, height=90 + 26 * len(data["targets"]), table=numbers)
    return f"<h2>What each target would change</h2>{chart}"


def _tokens_section(data: Mapping[str, Any]) -> str:
    cards = []
    for kind, tokens in data["frequent_tokens"].items():
        rows = [(token["token"], token["count"], f"{100 * token['count'] / token['of']:.0f} %") for token in tokens]
        listed = table(("token", "times", "of its occurrences"), rows, f"Tokens that are most often {NAMES[kind]}")
        cards.append(f'<section class="card">{listed}</section>')
    return f'<h2>Frequent tokens</h2><div class="grid">{"".join(cards)}</div>'
