"""A target over a grid of situations and hyper-parameters: the tables behind the explorer's sliders.

The situation is one position of a text in a vocabulary of six tokens. The label is token 0; sliders set its probability
under the student and the teacher, and the rest keeps its proportions. The teacher keeps its four likeliest tokens, as a
cache keeps 64 of 150,000, so that the tail rules can be seen. Every number is computed by the package's own rows; the
page only looks numbers up.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.targets.fixed_point import fixed_point
from qsft.targets.residual import FORMS, TAILS
from qsft.targets.target import Target
from qsft.targets.view import SideInputs, TokenView, TopK

TOKENS = ("y", "a", "b", "c", "d", "e")
KEPT = 4
P_GRID = (0.01, *(i / 20 for i in range(1, 20)), 0.99)
T_GRID = (0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99)
STUDENT_REST = (0.45, 0.25, 0.15, 0.10, 0.05)
TEACHER_REST = (0.20, 0.45, 0.20, 0.10, 0.05)  # its favourite alternative is another one than the student's
DATA = (0.70, 0.12, 0.08, 0.05, 0.03, 0.02)  # how often each token follows this context in the data
STEPS, STEP, STILL = 150, 0.9, 1e-5  # of the descent
Build = Callable[..., Target]
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

    def thinned(self) -> "Axis":
        """Every other value, the first, the last and the default kept."""
        keep = {*range(0, len(self.values), 2), len(self.values) - 1, self.start}
        return Axis.of(self.name, self.label, [self.values[i] for i in sorted(keep)], self.values[self.start])


class Table(NamedTuple):
    """A target over situation × hyper-parameters: `rows[hparams, situation]` holds loss, γ, Q, gradient, p*."""

    situation: tuple[Axis, ...]
    hparams: tuple[Axis, ...]
    rows: Float[Tensor, "C S W"]
    targets: tuple[Target | None, ...]  # per combination of hyper-parameters; None where refused
    refused: tuple[str, ...]
    closed: tuple[bool, ...]  # whether p* is a closed form


def situation_of(target: Target) -> list[str]:
    """The names in SITUATION of what `target` reads; a reference's distribution varies as a teacher's does."""
    distribution = {"teacher"} if target.role and "ref_logp" not in target.needs else set()
    return [name for name in SITUATION if name in target.needs | distribution]


def tabulate(build: Build) -> Table:
    """The table of `build`, a function of hyper-parameters with defaults."""
    student = Axis.of("p", "p_θ(y), the student's probability of y", P_GRID, 0.3)
    situation = (student, *(Axis.of(name, *SITUATION[name]) for name in situation_of(build())))
    size = math.prod(len(axis.values) for axis in situation)
    hparams = _thinned(tuple(_hparam_axes(build)), size)
    cells: list[tuple[Tensor, Target | None, str, bool]] = []
    for values in itertools.product(*(axis.values for axis in hparams)):
        try:
            target = build(**dict(zip((axis.name for axis in hparams), values)))
        except ValueError as error:  # a pair of hyper-parameters that the row refuses: the page says why
            cells.append((torch.full((size, 2 + 3 * len(TOKENS)), math.nan), None, str(error), False))
        else:
            rows, closed = evaluate(target, situation)
            cells.append((rows, target, "", closed))
    tables, *others = zip(*cells)
    return Table(situation, hparams, torch.stack(tables), *others)


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
    # CE(Q, p), or the value of the user's own loss: what `target_loss` sums.
    parts = [torch.where(mass == 0, 0.0, mass * dist.cross_entropy(view)) for mass, dist in q.terms]
    loss = q.scale * (torch.stack(parts).sum(dim=0) if q.value is None else q.value)
    end, closed = destination(target, p, t, side)
    return torch.cat([loss[:, None], q.gamma[:, None], dense, gradient, end], dim=-1), closed


def _hparam_axes(build: Build) -> Iterator[Axis]:
    for name, parameter in inspect.signature(build).parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            raise ValueError(f"{build} needs a value for {name!r}: give every hyper-parameter a default to show it.")
        around = (0.25, 0.5, 1.0, 2.0, 4.0) if isinstance(default, float) and default > 0 else ()
        values = VALUES.get(name, [default * factor for factor in around] or [default])
        yield Axis.of(name, name, [v for v in values if v is not None or default is None], default)


def _thinned(axes: tuple[Axis, ...], situations: int) -> tuple[Axis, ...]:
    """The axes with values left out, longest first, until the table is small enough."""
    while math.prod(len(axis.values) for axis in axes) * situations > MOST_ROWS:
        longest = max(axes, key=lambda axis: len(axis.values))
        if len(longest.thinned().values) == len(longest.values):
            break
        axes = tuple(axis.thinned() if axis is longest else axis for axis in axes)
    return axes


# ---- six tokens: a student, a teacher, and where training goes from there ----


def student_probs(p_y: Float[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """The student's distribution with p_y on the label."""
    return torch.cat([p_y[:, None], (1.0 - p_y)[:, None] * p_y.new_tensor(STUDENT_REST)], dim=-1)


def teacher_probs(t_y: Float[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """The teacher's whole distribution with t_y on the label."""
    return torch.cat([t_y[:, None], (1.0 - t_y)[:, None] * t_y.new_tensor(TEACHER_REST)], dim=-1)


def kept(probs: Float[Tensor, "N V"]) -> TopK:
    """What a cache would keep of a teacher; the label is token 0."""
    top = probs.log().topk(KEPT, dim=-1)
    return TopK(top.indices, top.values, probs[:, 0].log())


def destination(
    target: Target, p: Float[Tensor, "N V"], t: Float[Tensor, "N V"], side: SideInputs | None = None
) -> tuple[Float[Tensor, "N V"], bool]:
    """(p*, whether it is a closed form): where a target takes students p with teachers t, of which the top is kept."""
    closed = closed_form(target, t)
    return (descend(target, p, t, side), False) if closed is None else (closed, True)


def closed_form(target: Target, t: Float[Tensor, "N V"]) -> Float[Tensor, "N V"] | None:
    """`fixed_point` for each teacher; under `drop` the teacher is what is left of it on the kept tokens."""
    if getattr(target.residual, "tail", None) == "drop":
        top = kept(t)
        t = torch.zeros_like(t).scatter(-1, top.ids, top.logps.exp())
        t = t / t.sum(dim=-1, keepdim=True)
    rows = [fixed_point(target, t.new_tensor(DATA), row) for row in t]
    return None if any(row is None for row in rows) else torch.stack([row for row in rows if row is not None])


def descend(
    target: Target, p: Float[Tensor, "N V"], t: Float[Tensor, "N V"], side: SideInputs | None = None
) -> Float[Tensor, "N V"]:
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
