"""The target explorer: one page with sliders over every named target and the user's own, and its curves alone.

`targets_page` is the page, `curves_figure` the paper's picture of losses as one Plotly figure, for notebooks.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qsft.explore import grid
from qsft.explore.grid import SITUATION, Axis, Build, evaluate, situation_of, tabulate
from qsft.page import COLOURS, page, static
from qsft.targets.induced import LossTarget
from qsft.targets.table import entry, formula
from qsft.targets.target import Target
from qsft.targets.zoo import TARGETS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Showable = str | Target | Build

# Title and column of `evaluate`'s rows.
PANELS = {
    "loss": 0,
    "target on the label, Q_y": 2,
    "target on another token, Q_a": 3,
    "gradient on the label y": 2 + len(grid.TOKENS),
    "gradient on another token a": 3 + len(grid.TOKENS),
}
_BODY = """
<section class="card situation" aria-labelledby="situation-title">
<h2 id="situation-title">The situation</h2>
<p class="note">One position of a text. The data say <b>y</b>; the model knows six tokens. Move a slider, or focus it
and use the arrow keys.</p>
<div id="situation" class="sliders"></div>
</section>
<div class="pair"><section id="first" class="card" aria-label="First target"></section>
<section id="second" class="card" aria-label="Second target"></section></div>
<h2>Along p_θ(y)</h2>
<p class="note">The same situation for every probability that the student may give to y; the dot is where the slider
stands.</p>
<p id="legend"></p>
<div id="curves" class="grid curves"></div>
<p id="said" class="hidden-visually" role="status"></p>
"""


def targets_page(targets: Iterable[Showable] = (), *, named: bool = True) -> str:
    """The explorer as HTML: `targets` first, then (if `named`) every row of the table.

    A target is a name, a Target, or a function of hyper-parameters with defaults that returns one; its sliders are the
    function's arguments.
    """
    shown = [_shown(target) for target in (*targets, *(TARGETS if named else ()))]
    if not shown:
        raise ValueError("there is no target to show: give some, or leave named=True.")
    data = {
        "tokens": grid.TOKENS,
        "data": grid.DATA,
        "student": _rounded(grid.student_probs(torch.tensor(grid.P_GRID, dtype=torch.float64))),
        "teacher": _rounded(grid.teacher_probs(torch.tensor(grid.T_GRID, dtype=torch.float64))),
        "targets": shown,
    }
    return page(
        "What should the model match?",
        _BODY,
        lede="Every fine-tuning method is a choice of target Q = γ·δ_y + (1−γ)·π̃. Pick one or two and look at them.",
        data=data,
        script=static("qsft.explore", "targets.js"),
        style=static("qsft.explore", "targets.css"),
        plotly=True,
    )


def _shown(target: Showable) -> dict[str, Any]:
    """One target as the page reads it: words, axes, and the table as base64 float32."""
    build: Build
    if isinstance(target, str):
        row, build = entry(target), TARGETS[target]
        name, words = target, f"{row['title']} ({row['reference']})"
    elif isinstance(target, Target):
        own = target.record()["loss"] if isinstance(target, LossTarget) else formula(target)
        name, words, build = f"yours: {own}", repr(target), lambda: target
    else:
        name, words, build = getattr(target, "__name__", "yours"), " ".join((target.__doc__ or "").split()), target
    table = tabulate(build)
    return {
        "name": name,
        "words": words,
        "situation": [asdict(axis) for axis in table.situation],
        "hparams": [asdict(axis) for axis in table.hparams],
        "formulas": [formula(one) if one is not None else "" for one in table.targets],
        "refused": table.refused,
        "closed": table.closed,
        "table": base64.b64encode(np.ascontiguousarray(table.rows.numpy().astype("<f4")).tobytes()).decode(),
    }


def _rounded(rows: torch.Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in row] for row in rows.tolist()]


def curves_figure(targets: Mapping[str, Target], *, teacher_p: float = 0.75) -> "Figure":
    """Loss, target and gradient over p_θ(y) of each named target; the teacher gives y the probability `teacher_p`."""
    from plotly.subplots import make_subplots

    fig = make_subplots(rows=1, cols=len(PANELS), subplot_titles=list(PANELS), horizontal_spacing=0.06)
    for i, (name, target) in enumerate(targets.items()):
        fixed = {name: teacher_p if name == "teacher" else SITUATION[name][2] for name in situation_of(target)}
        points = [Axis("p", "", grid.P_GRID, 0), *(Axis(name, "", (value,), 0) for name, value in fixed.items())]
        rows, line = evaluate(target, points)[0], {"color": COLOURS[i % len(COLOURS)], "width": 2.5}
        shared = {"x": grid.P_GRID, "name": name, "legendgroup": name, "line": line}
        for column, panel in enumerate(PANELS.values(), start=1):
            fig.add_scatter(**shared, y=rows[:, panel].tolist(), showlegend=column == 1, row=1, col=column)
    fig.update_xaxes(title="p_θ(y)", range=[0, 1])
    margin, legend = {"l": 40, "r": 10, "t": 50, "b": 40}, {"orientation": "h", "y": -0.3}
    return fig.update_layout(height=320, margin=margin, legend=legend)
