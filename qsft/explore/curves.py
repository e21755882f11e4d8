"""Loss, target and gradient over p_θ(y) as one Plotly figure: the paper's picture of losses, for notebooks."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from qsft.explore import six_tokens
from qsft.explore.grid import SITUATION, Axis, evaluate, situation_of
from qsft.page import COLOURS
from qsft.targets.induced import LossTarget
from qsft.targets.target import Target

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Title and column of `evaluate`'s rows.
PANELS = {
    "loss": 0,
    "target on the label, Q_y": 2,
    "target on another token, Q_a": 3,
    "gradient on the label y": 2 + len(six_tokens.TOKENS),
    "gradient on another token a": 3 + len(six_tokens.TOKENS),
}


def curves_figure(targets: Mapping[str, Target | LossTarget], *, teacher_p: float = 0.75) -> "Figure":
    """The curves of each named target; the teacher gives y the probability `teacher_p`."""
    from plotly.subplots import make_subplots

    fig = make_subplots(rows=1, cols=len(PANELS), subplot_titles=list(PANELS), horizontal_spacing=0.06)
    for i, (name, target) in enumerate(targets.items()):
        rows = _rows(target, teacher_p)
        for column, panel in enumerate(PANELS.values(), start=1):
            line = {"color": COLOURS[i % len(COLOURS)], "width": 2.5}
            fig.add_scatter(
                x=six_tokens.P_GRID,
                y=rows[:, panel].tolist(),
                name=name,
                legendgroup=name,
                showlegend=column == 1,
                line=line,
                row=1,
                col=column,
            )
    fig.update_xaxes(title="p_θ(y)", range=[0, 1])
    return fig.update_layout(
        height=320, margin={"l": 40, "r": 10, "t": 50, "b": 40}, legend={"orientation": "h", "y": -0.3}
    )


def _rows(target: Target | LossTarget, teacher_p: float) -> torch.Tensor:
    fixed = {name: SITUATION[name][2] for name in situation_of(target)}
    if "teacher" in fixed:
        fixed["teacher"] = teacher_p
    situation = [Axis("p", "", six_tokens.P_GRID, 0), *(Axis(name, "", (value,), 0) for name, value in fixed.items())]
    return evaluate(target, situation)[0]
