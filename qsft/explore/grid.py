"""A target over a grid of situations and hyper-parameters: the tables behind the explorer's sliders.

Every number is computed by the package's own rows; the page only looks numbers up.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.explore import six_tokens
from qsft.targets.induced import LossTarget
from qsft.targets.residual import FORMS, TAILS
from qsft.targets.target import Mixture, Target
from qsft.targets.view import SideInputs, TokenView

Build = Callable[..., Target | LossTarget]
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
    "teacher": ("π_T(y), the teacher's probability of y", six_tokens.T_GRID, 0.75),
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
        every = tuple(values) if default in values else tuple(sorted({*(v for v in values if v is not None), default}))
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
    targets: tuple[Target | LossTarget | None, ...]  # per combination of hyper-parameters; None where refused
    refused: tuple[str, ...]
    closed: tuple[bool, ...]  # whether p* is a closed form


def situation_of(target: Target | LossTarget) -> list[str]:
    """The names in SITUATION of what `target` reads; a reference's distribution varies as a teacher's does."""
    distribution = {"teacher"} if target.role and "ref_logp" not in target.needs else set()
    return [name for name in SITUATION if name in target.needs | distribution]


def tabulate(build: Build) -> Table:
    """The table of `build`, a function of hyper-parameters with defaults."""
    student = Axis.of("p", "p_θ(y), the student's probability of y", six_tokens.P_GRID, 0.3)
    situation = (student, *(Axis.of(name, *SITUATION[name]) for name in situation_of(build())))
    hparams = _thinned(tuple(_hparam_axes(build)), math.prod(len(axis.values) for axis in situation))
    combinations = list(itertools.product(*(axis.values for axis in hparams)))
    cells = [_cell(build, dict(zip((a.name for a in hparams), values)), situation) for values in combinations]
    rows, *others = zip(*cells)
    return Table(situation, hparams, torch.stack(rows), *others)


def _cell(build: Build, hparams: Mapping[str, Any], situation: Sequence[Axis]) -> tuple[Tensor, Any, str, bool]:
    try:
        target = build(**hparams)
    except ValueError as error:  # a pair of hyper-parameters that the row refuses: the page says why
        size = math.prod(len(axis.values) for axis in situation)
        return torch.full((size, 2 + 3 * len(six_tokens.TOKENS)), math.nan), None, str(error), False
    rows, closed = evaluate(target, situation)
    return rows, target, "", closed


def evaluate(target: Target | LossTarget, situation: Sequence[Axis]) -> tuple[Float[Tensor, "S W"], bool]:
    """Loss, γ, Q, gradient and p* of `target` at every point of the situation's axes, and if p* is a closed form."""
    grid = torch.tensor(list(itertools.product(*(axis.values for axis in situation))), dtype=torch.float64)
    column = {axis.name: grid[:, i] for i, axis in enumerate(situation)}
    p, t = six_tokens.student(column["p"]), six_tokens.teacher(column.get("teacher", torch.full_like(grid[:, 0], 0.5)))
    labels = torch.zeros(len(grid), dtype=torch.int64)
    teacher = six_tokens.kept(t) if "teacher" in column else None
    side = target.prepare(_side(column), teacher, lambda: column["p"].log())
    view = TokenView.of(p.log(), labels, teacher, side)
    q = target(view)
    dense = q.dense(p)
    gradient = q.scale[:, None] * (p - dense)
    end, closed = six_tokens.destination(target, p, t, side)
    return torch.cat([token_losses(view, q)[:, None], q.gamma[:, None], dense, gradient, end], dim=-1), closed


def token_losses(view: TokenView, q: Mixture) -> Float[Tensor, " N"]:
    """scale·CE(Q, p) of each token, or the value of the user's own loss: what `target_loss` sums."""
    if q.value is not None:
        return q.scale * q.value
    parts = [torch.where(mass == 0, 0.0, mass * dist.cross_entropy(view)) for mass, dist in q.terms]
    return q.scale * torch.stack(parts).sum(dim=0)


def _side(column: Mapping[str, Tensor]) -> SideInputs:
    ref, old = (column[name].log() if name in column else None for name in ("ref_logp", "old_logp"))
    each_its_own = torch.arange(len(column["p"]))  # every point is a document
    return SideInputs(ref_logp=ref, old_logp=old, critical=column.get("critical"), document=each_its_own)


def _hparam_axes(build: Build) -> Iterator[Axis]:
    for name, parameter in inspect.signature(build).parameters.items():
        default = parameter.default
        if default is inspect.Parameter.empty:
            raise ValueError(f"{build} needs a value for {name!r}: give every hyper-parameter a default to show it.")
        values = VALUES.get(name, _around(default))
        yield Axis.of(name, name, [v for v in values if v is not None or default is None], default)


def _around(default: Any) -> tuple[Any, ...]:
    """Stops for a hyper-parameter nobody listed: multiples of its default."""
    if isinstance(default, float) and default > 0:
        return tuple(default * factor for factor in (0.25, 0.5, 1.0, 2.0, 4.0))
    return (default,)


def _thinned(axes: tuple[Axis, ...], situations: int) -> tuple[Axis, ...]:
    """The axes with values left out, longest first, until the table is small enough."""
    while math.prod(len(axis.values) for axis in axes) * situations > MOST_ROWS:
        longest = max(axes, key=lambda axis: len(axis.values))
        if len(longest.thinned().values) == len(longest.values):
            break
        axes = tuple(axis.thinned() if axis is longest else axis for axis in axes)
    return axes
