"""A target over a grid of situations and hyper-parameters: the numbers behind the page of targets.

A situation is one position of a text in a vocabulary of six tokens. The label is token 0; p_θ(y) and π_T(y) vary, and
the other tokens keep their proportions. The teacher keeps its four likeliest tokens, as a cache keeps 64 of 150,000,
so that the tail rules have an effect.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.targets.fixed_point import fixed_point
from qsft.targets.residual import FORMS, TAILS
from qsft.targets.table import formula
from qsft.targets.target import Target
from qsft.targets.view import SideInputs, TokenView, TopK

Probs = Float[Tensor, "N V"]
Build = Callable[..., Target]

TOKENS = ("y", "a", "b", "c", "d", "e")
KEPT = 4  # tokens of the teacher
STUDENT_REST = (0.45, 0.25, 0.15, 0.10, 0.05)  # proportions of the tokens beside the label
TEACHER_REST = (0.20, 0.45, 0.20, 0.10, 0.05)  # its first alternative differs from the student's
DATA = (0.70, 0.12, 0.08, 0.05, 0.03, 0.02)  # how often each token follows this context in the data

P_GRID = (0.01, *(i / 20 for i in range(1, 20)), 0.99)
T_GRID = (0.01, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.99)
DEFAULT_P = 0.3
MOST_POINTS = 10_000  # of one target's table: keeps the page small

MOST_STEPS = 150  # of the descent
STEP_SIZE = 0.9
CONVERGED = 1e-5

# Columns of a table's points.
LOSS = 0
GAMMA = 1
Q = 2  # the first of one column per token
GRADIENT = Q + len(TOKENS)
END = GRADIENT + len(TOKENS)  # p*, the distribution that training ends at
WIDTH = END + len(TOKENS)

# The values of a hyper-parameter's slider, by name; a target's default is added where it is missing.
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


@dataclass(frozen=True)
class Axis:
    """One slider: the label beside it, its values, the index of the value it starts at."""

    name: str
    label: str
    values: tuple[Any, ...]
    start: int

    @classmethod
    def starting_at(cls, default: Any, name: str, label: str, values: Sequence[Any]) -> "Axis":
        """Return an axis that starts at `default`, which is added to the values if it is missing."""
        if default in values:
            every = tuple(values)
        else:
            every = tuple(sorted({*values, default}))
        return cls(name, label, every, every.index(default))

    def thinned(self) -> "Axis":
        """Return the axis with every other value left out; the first, the last and the start stay."""
        kept = sorted({*range(0, len(self.values), 2), len(self.values) - 1, self.start})
        return Axis(self.name, self.label, tuple(self.values[i] for i in kept), kept.index(self.start))


STUDENT_AXIS = Axis.starting_at(DEFAULT_P, "p", "p_θ(y), the student's probability of y", P_GRID)
# What a target may read beside the student, as `Target.needs` names it.
SITUATION_AXES = {
    axis.name: axis
    for axis in (
        Axis.starting_at(0.75, "teacher", "π_T(y), the teacher's probability of y", T_GRID),
        Axis.starting_at(0.5, "ref_logp", "π_ref(y), the reference's probability of y", (0.1, 0.3, 0.5, 0.7, 0.9)),
        Axis.starting_at(0.5, "old_logp", "π_old(y), the old policy's probability of y", (0.1, 0.3, 0.5, 0.7, 0.9)),
        Axis.starting_at(1, "critical", "critical token (1) or not (0)", (0, 1)),
    )
}


@dataclass(frozen=True)
class Cell:
    """A target at one combination of hyper-parameters.

    Args:
        points: [situations, WIDTH]; NaN where the target raises an error.
        formula: the target in one line.
        error: why the target does not accept this combination; empty where it does.
        closed_form: whether p* is a closed form.
    """

    points: Float[Tensor, "S W"]
    formula: str
    error: str
    closed_form: bool


@dataclass(frozen=True)
class Table:
    """A target over every combination of hyper-parameters, in the order of their product."""

    situation: tuple[Axis, ...]
    hyper_parameters: tuple[Axis, ...]
    cells: list[Cell]


def tabulate(build: Build) -> Table:
    """Return the table of `build`, a function of hyper-parameters with defaults that returns a target."""
    situation = situation_axes(build())
    situations = math.prod(len(axis.values) for axis in situation)
    hyper_parameters = _thin(_hyper_parameter_axes(build), situations)
    names = [axis.name for axis in hyper_parameters]
    cells = []
    with _one_thread():
        for values in itertools.product(*(axis.values for axis in hyper_parameters)):
            try:
                target = build(**dict(zip(names, values)))
            except ValueError as error:
                # A combination that the target does not accept: the page shows why.
                cells.append(Cell(torch.full((situations, WIDTH), math.nan), "", str(error), False))
                continue
            points, is_closed_form = evaluate(target, situation)
            cells.append(Cell(points, formula(target), "", is_closed_form))
    return Table(situation, hyper_parameters, cells)


def situation_axes(target: Target) -> tuple[Axis, ...]:
    """Return the student's axis and those of what `target` reads; a reference's distribution is like a teacher's."""
    read = set(target.needs)
    if target.role is not None and "ref_logp" not in target.needs:
        read.add("teacher")
    return (STUDENT_AXIS, *(axis for name, axis in SITUATION_AXES.items() if name in read))


def evaluate(target: Target, situation: Sequence[Axis]) -> tuple[Float[Tensor, "S W"], bool]:
    """Return loss, γ, Q, gradient and p* at every point of the axes, and whether p* is a closed form."""
    grid = torch.tensor(list(itertools.product(*(axis.values for axis in situation))), dtype=torch.float64)
    columns = {axis.name: grid[:, i] for i, axis in enumerate(situation)}
    p = student_probs(columns["p"])
    t = teacher_probs(columns.get("teacher", torch.full_like(columns["p"], 0.5)))
    teacher = kept_tokens(t) if "teacher" in columns else None
    side = SideInputs(
        ref_logp=columns["ref_logp"].log() if "ref_logp" in columns else None,
        old_logp=columns["old_logp"].log() if "old_logp" in columns else None,
        critical=columns.get("critical"),
        document=torch.arange(len(grid)),  # every point is a document
    )
    side = target.prepare(side, teacher, lambda: columns["p"].log())
    view = TokenView.of(p.log(), torch.zeros(len(grid), dtype=torch.int64), teacher, side)
    mixture = target(view)
    q = mixture.dense(p)
    gradient = mixture.scale[:, None] * (p - q)
    # The loss as `target_loss` reports it.
    loss = mixture.scale * mixture.cross_entropy(view) if mixture.value is None else mixture.value
    end = closed_form(target, t)
    is_closed_form = end is not None
    if end is None:
        end = descend(target, p, t, side)
    return torch.cat([loss[:, None], mixture.gamma[:, None], q, gradient, end], dim=-1), is_closed_form


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: for tensors this small the threads' synchronization takes longer than the computation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _hyper_parameter_axes(build: Build) -> list[Axis]:
    axes = []
    for name, parameter in inspect.signature(build).parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            raise ValueError(f"{build} needs a value for {name!r}: give every hyper-parameter a default to show it.")
        values: Sequence[Any]
        if name in VALUES:
            values = VALUES[name]
        elif isinstance(default, float) and default > 0:
            values = [default * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
        else:
            values = [default]
        if default is not None:
            values = [value for value in values if value is not None]
        axes.append(Axis.starting_at(default, name, name, values))
    return axes


def _thin(axes: Sequence[Axis], situations: int) -> tuple[Axis, ...]:
    """Return the axes with values left out, from the longest axis first, until the table is small enough."""
    thinned = list(axes)
    while math.prod(len(axis.values) for axis in thinned) * situations > MOST_POINTS:
        longest = max(range(len(thinned)), key=lambda i: len(thinned[i].values))
        thinner = thinned[longest].thinned()
        if thinner == thinned[longest]:
            break
        thinned[longest] = thinner
    return tuple(thinned)


# ---- six tokens: student, teacher, and the distribution that training ends at ----


def student_probs(p_y: Float[Tensor, " N"]) -> Probs:
    """Return the student's distribution with p_y on the label."""
    return torch.cat([p_y[:, None], (1.0 - p_y)[:, None] * p_y.new_tensor(STUDENT_REST)], dim=-1)


def teacher_probs(t_y: Float[Tensor, " N"]) -> Probs:
    """Return the teacher's distribution over all tokens with t_y on the label."""
    return torch.cat([t_y[:, None], (1.0 - t_y)[:, None] * t_y.new_tensor(TEACHER_REST)], dim=-1)


def kept_tokens(probs: Probs) -> TopK:
    """Return what a cache would keep of a teacher; the label is token 0."""
    top = probs.log().topk(KEPT, dim=-1)
    return TopK(top.indices, top.values, probs[:, 0].log())


def closed_form(target: Target, t: Probs) -> Probs | None:
    """Return p* for students with the teachers `t` by `fixed_point`, or None where no closed form is known.

    With tail="drop" the teacher is its kept tokens, renormalized.
    """
    if getattr(target.residual, "tail", None) == "drop":
        top = kept_tokens(t)
        t = torch.zeros_like(t).scatter(-1, top.ids, top.logps.exp())
        t = t / t.sum(dim=-1, keepdim=True)
    # p* does not depend on the student: one evaluation for each different teacher.
    teachers, index = torch.unique(t, dim=0, return_inverse=True)
    ends = []
    for teacher in teachers:
        end = fixed_point(target, t.new_tensor(DATA), teacher)
        if end is None:
            return None
        ends.append(end)
    return torch.stack(ends)[index]


def descend(target: Target, p: Probs, t: Probs, side: SideInputs | None = None) -> Probs:
    """Return the end of the natural-gradient flow dp = Σ_y d_y·scale·(Q(y) − p) from p; it rests where training does.

    A point that has converged is not evaluated again.
    """
    n, v = p.shape
    data = p.new_tensor(DATA)
    # Each point is evaluated with every token as its label.
    top = kept_tokens(t.repeat_interleave(v, dim=0))
    label_side = (side or SideInputs())[torch.arange(n).repeat_interleave(v)]
    end = p.clone()
    moving = torch.arange(n)
    for _ in range(MOST_STEPS):
        tokens = (moving[:, None] * v + torch.arange(v)).flatten()
        labels = torch.arange(v).repeat(len(moving))
        logits = end[moving].clamp(min=1e-12).log().repeat_interleave(v, dim=0)
        mixture = target(TokenView.of(logits, labels, top[tokens], label_side[tokens]))
        label_p = logits.exp()
        # A scale above 1 would overshoot; dividing by it changes the speed, not where the flow rests.
        largest_scale = mixture.scale.view(-1, v).amax(dim=-1).clamp(min=1.0).repeat_interleave(v)
        pull = (mixture.scale / largest_scale)[:, None] * (mixture.dense(label_p) - label_p)
        step = torch.einsum("y,nyv->nv", data, pull.view(-1, v, v))
        moved = (end[moving] + STEP_SIZE * step).clamp(min=0.0)
        end[moving] = moved / moved.sum(dim=-1, keepdim=True)
        moving = moving[step.abs().amax(dim=-1) >= CONVERGED]
        if len(moving) == 0:
            break
    return end
