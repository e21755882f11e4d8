"""The target explorer: one page with sliders over every named target and the user's own."""

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from qsft.explore import six_tokens
from qsft.explore.grid import Axis, Build, Table, tabulate
from qsft.page import page, static
from qsft.targets.induced import LossTarget
from qsft.targets.table import entry, formula
from qsft.targets.target import Target
from qsft.targets.zoo import TARGETS

Showable = str | Target | LossTarget | Build

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

    A target is a name, a Target, a LossTarget, or a function of hyper-parameters with defaults that returns one of
    them; its sliders are the function's arguments.
    """
    shown = [_shown(target) for target in targets]
    shown += [_shown(name) for name in TARGETS if named]
    if not shown:
        raise ValueError("there is no target to show: give some, or leave named=True.")
    data = {
        "tokens": six_tokens.TOKENS,
        "data": six_tokens.DATA,
        "student": _rounded(six_tokens.student(torch.tensor(six_tokens.P_GRID, dtype=torch.float64))),
        "teacher": _rounded(six_tokens.teacher(torch.tensor(six_tokens.T_GRID, dtype=torch.float64))),
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
    if isinstance(target, str):
        named = entry(target)
        return {"name": target, "words": f"{named.title} ({named.reference})", **_packed(tabulate(TARGETS[target]))}
    if isinstance(target, Target | LossTarget):
        return {"name": _name(target), "words": repr(target), **_packed(tabulate(lambda: target))}
    words = " ".join((target.__doc__ or "").split())
    return {"name": getattr(target, "__name__", "yours"), "words": words, **_packed(tabulate(target))}


def _name(target: Target | LossTarget) -> str:
    return f"yours: {target.record()['loss'] if isinstance(target, LossTarget) else formula(target)}"


def _packed(table: Table) -> dict[str, Any]:
    values = table.rows.numpy().astype("<f4")
    return {
        "situation": [_axis(axis) for axis in table.situation],
        "hparams": [_axis(axis) for axis in table.hparams],
        "formulas": [formula(target) if target is not None else "" for target in table.targets],
        "refused": table.refused,
        "closed": table.closed,
        "table": base64.b64encode(np.ascontiguousarray(values).tobytes()).decode(),
    }


def _axis(axis: Axis) -> dict[str, Any]:
    return {"name": axis.name, "label": axis.label, "values": axis.values, "start": axis.start}


def _rounded(rows: torch.Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in row] for row in rows.tolist()]
