"""A vocabulary of six tokens in which a target can be looked at: a student, a teacher, what the data say, and where
training goes from there.

The label is token 0. Sliders set its probability under the student and the teacher; the rest keeps its proportions.
The teacher keeps its four likeliest tokens, as a cache keeps 64 of 150,000, so that the tail rules can be seen.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.targets.fixed_point import fixed_point
from qsft.targets.induced import LossTarget
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


def student(p_y: Float[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """The student's distribution with p_y on the label."""
    return _spread(p_y, STUDENT_REST)


def teacher(t_y: Float[Tensor, " N"]) -> Float[Tensor, "N V"]:
    """The teacher's whole distribution with t_y on the label."""
    return _spread(t_y, TEACHER_REST)


def kept(probs: Float[Tensor, "N V"]) -> TopK:
    """What a cache would keep of a teacher; the label is token 0."""
    top = probs.log().topk(KEPT, dim=-1)
    return TopK(top.indices, top.values, probs[:, 0].log())


def _spread(label: Tensor, rest: tuple[float, ...]) -> Tensor:
    return torch.cat([label[:, None], (1.0 - label)[:, None] * label.new_tensor(rest)], dim=-1)


def destination(
    target: Target | LossTarget, p: Float[Tensor, "N V"], t: Float[Tensor, "N V"], side: SideInputs | None = None
) -> tuple[Float[Tensor, "N V"], bool]:
    """(p*, whether it is a closed form): where a target takes students p with teachers t, of which the top is kept."""
    closed = None if isinstance(target, LossTarget) else closed_form(target, t)
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
    target: Target | LossTarget, p: Float[Tensor, "N V"], t: Float[Tensor, "N V"], side: SideInputs | None = None
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
