"""The page of targets: sliders over every named target and the user's own, and its curves as one figure.

Every number is computed by the package's own targets (target_grid.py); the page only looks numbers up.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qsft.explore.target_grid import (
    DATA,
    GRADIENT,
    LOSS,
    P_GRID,
    T_GRID,
    TOKENS,
    Axis,
    Build,
    Q,
    evaluate,
    situation_axes,
    student_probs,
    tabulate,
    teacher_probs,
)
from qsft.page import COLORS, page, static
from qsft.targets.registry import TARGETS
from qsft.targets.table import entry, formula
from qsft.targets.target import LossTarget, Target

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Showable = str | Target | Build
# Title and column of the panels of `curves_figure`.
PANELS = {
    "loss": LOSS,
    "target on the label, Q_y": Q,
    "target on another token, Q_a": Q + 1,
    "gradient on the label y": GRADIENT,
    "gradient on another token a": GRADIENT + 1,
}


def targets_page(targets: Iterable[Showable] = (), *, named: bool = True) -> str:
    """Return the page of targets as HTML.

    Args:
        targets: shown first. Each is a name, a Target, or a function of hyper-parameters with defaults that returns
            a Target; the function's arguments become sliders.
        named: whether to add every named target.
    """
    shown = list(targets)
    if named:
        shown += TARGETS
    if not shown:
        raise ValueError("there is no target to show: pass some, or named=True.")
    data = {
        "tokens": TOKENS,
        "data": DATA,
        "student": _rounded(student_probs(torch.tensor(P_GRID, dtype=torch.float64))),
        "teacher": _rounded(teacher_probs(torch.tensor(T_GRID, dtype=torch.float64))),
        "targets": [_page_entry(target) for target in shown],
    }
    return page(
        "What should the model match?",
        static("qsft.explore", "targets.html"),
        lede="Every fine-tuning method is a choice of target Q = γ·δ_y + (1−γ)·π̃. Choose one or two to compare.",
        data=data,
        script=static("qsft.explore", "targets.js"),
        style=static("qsft.explore", "targets.css"),
        plotly=True,
    )


def _page_entry(target: Showable) -> dict[str, Any]:
    """Return one target as targets.js reads it: name, description, axes, and the points as base64 float32."""
    build: Build
    if isinstance(target, str):
        named = entry(target)
        name = target
        description = f"{named['title']}: {named['summary']} ({named['reference']})"
        build = TARGETS[target].build
    elif isinstance(target, Target):
        own = target.record()["loss"] if isinstance(target, LossTarget) else formula(target)
        name = f"yours: {own}"
        description = repr(target)

        def build() -> Target:
            return target
    else:
        name = getattr(target, "__name__", "yours")
        description = " ".join((target.__doc__ or "").split())
        build = target
    table = tabulate(build)
    points = torch.stack([cell.points for cell in table.cells]).numpy().astype("<f4")
    return {
        "name": name,
        "description": description,
        "situation": [asdict(axis) for axis in table.situation],
        "hyper_parameters": [asdict(axis) for axis in table.hyper_parameters],
        "formulas": [cell.formula for cell in table.cells],
        "errors": [cell.error for cell in table.cells],
        "closed_form": [cell.closed_form for cell in table.cells],
        "points": base64.b64encode(points.tobytes()).decode(),
    }


def _rounded(probs: Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in distribution] for distribution in probs.tolist()]


def curves_figure(targets: Mapping[str, Target], *, teacher_p: float = 0.75) -> "Figure":
    """Return loss, target and gradient of each target over p_θ(y), for notebooks.

    Args:
        teacher_p: the teacher's probability of y.
    """
    from plotly.subplots import make_subplots

    fig = make_subplots(rows=1, cols=len(PANELS), subplot_titles=list(PANELS), horizontal_spacing=0.06)
    for i, (name, target) in enumerate(targets.items()):
        student, *others = situation_axes(target)
        points, _ = evaluate(target, [student, *(_fixed(axis, teacher_p) for axis in others)])
        for panel, column in enumerate(PANELS.values(), start=1):
            fig.add_scatter(
                x=P_GRID,
                y=points[:, column].tolist(),
                name=name,
                legendgroup=name,
                line={"color": COLORS[i % len(COLORS)], "width": 2.5},
                showlegend=panel == 1,
                row=1,
                col=panel,
            )
    fig.update_xaxes(title="p_θ(y)", range=[0, 1])
    return fig.update_layout(
        height=320, margin={"l": 40, "r": 10, "t": 50, "b": 40}, legend={"orientation": "h", "y": -0.3}
    )


def _fixed(axis: Axis, teacher_p: float) -> Axis:
    """Return the axis with a single value: `teacher_p` for the teacher, the start for others."""
    value = teacher_p if axis.name == "teacher" else axis.values[axis.start]
    return replace(axis, values=(value,), start=0)
