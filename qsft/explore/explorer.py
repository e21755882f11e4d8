"""The target explorer: one page with sliders over every named target and the user's own, and its curves alone.

The situation is one position of a text in a vocabulary of six tokens. The label is token 0; sliders set its probability
under the student and the teacher, and the rest keeps its proportions. The teacher keeps its four likeliest tokens, as a
cache keeps 64 of 150,000, so that the tail rules can be seen. Every number is computed by the package's own rows; the
page only looks numbers up. `curves_figure` is the paper's picture of losses as one Plotly figure, for notebooks.
"""

import base64
import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.page import COLORS, page, static
from qsft.targets.fixed_point import fixed_point
from qsft.targets.registry import TARGETS
from qsft.targets.residual import FORMS, TAILS
from qsft.targets.table import entry, formula
from qsft.targets.target import LossTarget, Target
from qsft.targets.view import SideInputs, TokenView, TopK

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

TOKENS = ("y", "a", "b", "c", "d", "e")
KEPT = 4
P_GRID = (0.01, *(i / 20 for i in range(1, 20)), 0.99)
T_GRID = (0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99)
STUDENT_REST = (0.45, 0.25, 0.15, 0.10, 0.05)
TEACHER_REST = (0.20, 0.45, 0.20, 0.10, 0.05)  # its favourite alternative is another one than the student's
DATA = (0.70, 0.12, 0.08, 0.05, 0.03, 0.02)  # how often each token follows this context in the data
STEPS, STEP, STILL = 150, 0.9, 1e-5  # of the descent
Probs = Float[Tensor, "N V"]
Build = Callable[..., Target]
Showable = str | Target | Build
MOST_ROWS = 10_000  # of one target's table: keeps the page small

# The values a slider stops at, by the hyper-parameter's name; a row's default is added where it is missing.
VALUES: dict[str, tuple[Any, ...]] = {
    "eta": tuple(i / 10 for i in range(11)),
    "alpha": (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0),
    "tau": (None, 0.1, 0.2, 0.5),
    "keep": ("above", "below"),
    "k": (2, 4, 20),
    "clip": (1.0, 4.0, 16.0),
    "ratio": ("mean", "raw"),
    "eps": (0.0, 0.1, 0.28, 0.5, 1.0),
    "lam": (0.02, 0.05, 0.1, 0.2, 0.5, 1.0),
    "beta": (0.3, 0.5, 0.7, 0.9, 1.0, 1.5),
    "link": ("linear", "logsigmoid"),
    "c": (0.2, 0.5, 0.8, 1.0),
    "temperature": (0.5, 1.0, 2.0),
    "tail": TAILS,
    "form": FORMS,
}
SITUATION = {
    "teacher": ("π_T(y), the teacher's probability of y", T_GRID, 0.75),
    "ref_logp": ("π_ref(y), the reference's probability of y", (0.1, 0.3, 0.5, 0.7, 0.9), 0.5),
    "old_logp": ("π_old(y), the old policy's probability of y", (0.1, 0.3, 0.5, 0.7, 0.9), 0.5),
    "critical": ("critical token (1) or not (0)", (0, 1), 1),
}
# Title and column of `evaluate`'s rows.
PANELS = {
    "loss": 0,
    "target on the label, Q_y": 2,
    "target on another token, Q_a": 3,
    "gradient on the label y": 2 + len(TOKENS),
    "gradient on another token a": 3 + len(TOKENS),
}


# ---- the page and the curves ----


def targets_page(targets: Iterable[Showable] = (), *, named: bool = True) -> str:
    """The explorer as HTML: `targets` first, then (if `named`) every row of the table.

    A target is a name, a Target, or a function of hyper-parameters with defaults that returns one; its sliders are the
    function's arguments.
    """
    shown = [_shown(target) for target in (*targets, *(TARGETS if named else ()))]
    if not shown:
        raise ValueError("there is no target to show: give some, or leave named=True.")
    data = {
        "tokens": TOKENS,
        "data": DATA,
        "student": _rounded(student_probs(torch.tensor(P_GRID, dtype=torch.float64))),
        "teacher": _rounded(teacher_probs(torch.tensor(T_GRID, dtype=torch.float64))),
        "targets": shown,
    }
    return page(
        "What should the model match?",
        static("qsft.explore", "targets.html"),
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
        row, build = entry(target), TARGETS[target].build
        name, words = target, f"{row['title']}: {row['summary']} ({row['reference']})"
    elif isinstance(target, Target):
        own = target.record()["loss"] if isinstance(target, LossTarget) else formula(target)
        name, words, build = f"yours: {own}", repr(target), lambda: target
    else:
        name, words, build = getattr(target, "__name__", "yours"), " ".join((target.__doc__ or "").split()), target
    table = tabulate(build)
    packed = base64.b64encode(table.pop("rows").numpy().astype("<f4").tobytes()).decode()
    return {"name": name, "words": words, **table, "table": packed}


def _rounded(rows: Tensor) -> list[list[float]]:
    return [[round(value, 6) for value in row] for row in rows.tolist()]


def curves_figure(targets: Mapping[str, Target], *, teacher_p: float = 0.75) -> "Figure":
    """Loss, target and gradient over p_θ(y) of each named target; the teacher gives y the probability `teacher_p`."""
    from plotly.subplots import make_subplots

    fig = make_subplots(rows=1, cols=len(PANELS), subplot_titles=list(PANELS), horizontal_spacing=0.06)
    for i, (name, target) in enumerate(targets.items()):
        fixed = {name: teacher_p if name == "teacher" else SITUATION[name][2] for name in situation_of(target)}
        points = [Axis("p", "", P_GRID, 0), *(Axis(name, "", (value,), 0) for name, value in fixed.items())]
        rows, line = evaluate(target, points)[0], {"color": COLORS[i % len(COLORS)], "width": 2.5}
        shared = {"x": P_GRID, "name": name, "legendgroup": name, "line": line}
        for column, panel in enumerate(PANELS.values(), start=1):
            fig.add_scatter(**shared, y=rows[:, panel].tolist(), showlegend=column == 1, row=1, col=column)
    fig.update_xaxes(title="p_θ(y)", range=[0, 1])
    margin, legend = {"l": 40, "r": 10, "t": 50, "b": 40}, {"orientation": "h", "y": -0.3}
    return fig.update_layout(height=320, margin=margin, legend=legend)


# ---- a target over a grid of situations and hyper-parameters ----


@dataclass(frozen=True)
class Axis:
    """One slider: its name, what it says beside it, where it may stand, where it stands first."""

    name: str
    label: str
    values: tuple[Any, ...]
    start: int

    @classmethod
    def of(cls, name: str, label: str, values: Sequence[Any], default: Any) -> "Axis":
        """An axis that starts at `default`, which is put among the values if it is not there."""
        every = tuple(values) if default in values else tuple(sorted({*values, default}))
        return cls(name, label, every, every.index(default))


def situation_of(target: Target) -> list[str]:
    """The names in SITUATION of what `target` reads; a reference's distribution varies as a teacher's does."""
    distribution = {"teacher"} if target.role and "ref_logp" not in target.needs else set()
    return [name for name in SITUATION if name in target.needs | distribution]


def tabulate(build: Build) -> dict[str, Any]:
    """The table of `build`, a function of hyper-parameters with defaults.

    `rows[hparams, situation]` holds loss, γ, Q, gradient and p*. By combination of hyper-parameters: the target in one
    line, why the row refuses it if it does, and whether p* is a closed form.
    """
    student = Axis.of("p", "p_θ(y), the student's probability of y", P_GRID, 0.3)
    situation = (student, *(Axis.of(name, *SITUATION[name]) for name in situation_of(build())))
    size = math.prod(len(axis.values) for axis in situation)
    hparams = _thinned(tuple(_hparam_axes(build)), size)
    cells: list[tuple[Tensor, str, str, bool]] = []
    for values in itertools.product(*(axis.values for axis in hparams)):
        try:
            target = build(**dict(zip((axis.name for axis in hparams), values)))
        except ValueError as error:  # a pair of hyper-parameters that the row refuses: the page says why
            cells.append((torch.full((size, 2 + 3 * len(TOKENS)), math.nan), "", str(error), False))
        else:
            rows, closed = evaluate(target, situation)
            cells.append((rows, formula(target), "", closed))
    tables, formulas, refused, closed_forms = zip(*cells)
    axes = {"situation": [asdict(axis) for axis in situation], "hparams": [asdict(axis) for axis in hparams]}
    return {**axes, "formulas": formulas, "refused": refused, "closed": closed_forms, "rows": torch.stack(tables)}


def evaluate(target: Target, situation: Sequence[Axis]) -> tuple[Float[Tensor, "S W"], bool]:
    """Loss, γ, Q, gradient and p* of `target` at every point of the situation's axes, and if p* is a closed form."""
    grid = torch.tensor(list(itertools.product(*(axis.values for axis in situation))), dtype=torch.float64)
    column = {axis.name: grid[:, i] for i, axis in enumerate(situation)}
    p, t = student_probs(column["p"]), teacher_probs(column.get("teacher", torch.full_like(grid[:, 0], 0.5)))
    labels = torch.zeros(len(grid), dtype=torch.int64)
    teacher = kept(t) if "teacher" in column else None
    given: dict[str, Any] = {name: column[name].log() for name in ("ref_logp", "old_logp") if name in column}
    # Every point is a document.
    side = SideInputs(**given, critical=column.get("critical"), document=torch.arange(len(grid)))
    side = target.prepare(side, teacher, lambda: column["p"].log())
    view = TokenView.of(p.log(), labels, teacher, side)
    q = target(view)
    dense = q.dense(p)
    gradient = q.scale[:, None] * (p - dense)
    loss = q.scale * q.cross_entropy(view) if q.value is None else q.value  # what `target_loss` sums
    closed = closed_form(target, t)
    end = descend(target, p, t, side) if closed is None else closed
    return torch.cat([loss[:, None], q.gamma[:, None], dense, gradient, end], dim=-1), closed is not None


def _hparam_axes(build: Build) -> Iterator[Axis]:
    for name, parameter in inspect.signature(build).parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            raise ValueError(f"{build} needs a value for {name!r}: give every hyper-parameter a default to show it.")
        around = (0.25, 0.5, 1.0, 2.0, 4.0) if isinstance(default, float) and default > 0 else ()
        values = VALUES.get(name, [default * factor for factor in around] or [default])
        yield Axis.of(name, name, [v for v in values if v is not None or default is None], default)


def _thinned(axes: tuple[Axis, ...], situations: int) -> tuple[Axis, ...]:
    """The axes with every other value left out, longest first, until the table is small enough; defaults stay."""
    while math.prod(len(axis.values) for axis in axes) * situations > MOST_ROWS:
        name, label, values, start = astuple(longest := max(axes, key=lambda axis: len(axis.values)))
        keep = sorted({*range(0, len(values), 2), len(values) - 1, start})
        if len(keep) == len(values):
            break
        thinner = Axis(name, label, tuple(values[i] for i in keep), keep.index(start))
        axes = tuple(thinner if axis is longest else axis for axis in axes)
    return axes


# ---- six tokens: a student, a teacher, and where training goes from there ----


def student_probs(p_y: Float[Tensor, " N"]) -> Probs:
    """The student's distribution with p_y on the label."""
    return torch.cat([p_y[:, None], (1.0 - p_y)[:, None] * p_y.new_tensor(STUDENT_REST)], dim=-1)


def teacher_probs(t_y: Float[Tensor, " N"]) -> Probs:
    """The teacher's whole distribution with t_y on the label."""
    return torch.cat([t_y[:, None], (1.0 - t_y)[:, None] * t_y.new_tensor(TEACHER_REST)], dim=-1)


def kept(probs: Probs) -> TopK:
    """What a cache would keep of a teacher; the label is token 0."""
    top = probs.log().topk(KEPT, dim=-1)
    return TopK(top.indices, top.values, probs[:, 0].log())


def closed_form(target: Target, t: Probs) -> Probs | None:
    """p*, where `target` takes students with teachers t, if that is known: `fixed_point` for each teacher.

    Under `drop` the teacher is what is left of it on the kept tokens.
    """
    if getattr(target.residual, "tail", None) == "drop":
        top = kept(t)
        t = torch.zeros_like(t).scatter(-1, top.ids, top.logps.exp())
        t = t / t.sum(dim=-1, keepdim=True)
    rows = [fixed_point(target, t.new_tensor(DATA), row) for row in t]
    return None if any(row is None for row in rows) else torch.stack([row for row in rows if row is not None])


def descend(target: Target, p: Probs, t: Probs, side: SideInputs | None = None) -> Probs:
    """The end of the natural-gradient flow dp = Σ_y d_y·scale·(Q(y) − p) from p: its rest points are training's."""
    n, v = p.shape
    labels = torch.arange(v).repeat(n)
    top = kept(t.repeat_interleave(v, dim=0))
    each_side = (side or SideInputs())[torch.arange(n).repeat_interleave(v)]
    for _ in range(STEPS):
        logits = p.clamp(min=1e-12).log().repeat_interleave(v, dim=0)
        q = target(TokenView.of(logits, labels, top, each_side))
        each_p = logits.exp()
        # A scale above 1 would overshoot; dividing by it changes the speed, not where the flow rests.
        scale = q.scale / q.scale.view(n, v).amax(dim=-1).clamp(min=1.0).repeat_interleave(v)
        pull = scale[:, None] * (q.dense(each_p) - each_p)
        step = torch.einsum("y,nyv->nv", p.new_tensor(DATA), pull.view(n, v, v))
        p = (p + STEP * step).clamp(min=0.0)
        p = p / p.sum(dim=-1, keepdim=True)
        if float(step.abs().max()) < STILL:
            break
    return p
