"""Where training goes: the distribution a target drives one context to, in closed form or by descent."""

import torch
from jaxtyping import Float
from torch import Tensor

from qsft.explore.six_tokens import kept
from qsft.targets.fixed_point import fixed_point
from qsft.targets.induced import LossTarget
from qsft.targets.target import Target
from qsft.targets.view import SideInputs, TokenView

STEPS, STEP, STILL = 150, 0.9, 1e-5


def destination(
    target: Target | LossTarget,
    p: Float[Tensor, "N V"],
    t: Float[Tensor, "N V"],
    d: Float[Tensor, " V"],
    side: SideInputs | None = None,
) -> tuple[Float[Tensor, "N V"], bool]:
    """(p*, whether it is a closed form) for students p, teachers t of which a cache keeps the top, and data d."""
    closed = None if isinstance(target, LossTarget) else closed_form(target, t, d)
    return (descend(target, p, t, d, side), False) if closed is None else (closed, True)


def closed_form(target: Target, t: Float[Tensor, "N V"], d: Float[Tensor, " V"]) -> Float[Tensor, "N V"] | None:
    """`fixed_point` for each teacher; under `drop` the teacher is what is left of it on the kept tokens."""
    if getattr(target.residual, "tail", None) == "drop":
        top = kept(t)
        t = torch.zeros_like(t).scatter(-1, top.ids, top.logps.exp())
        t = t / t.sum(dim=-1, keepdim=True)
    rows = [fixed_point(target, d, row) for row in t]
    return None if any(row is None for row in rows) else torch.stack([row for row in rows if row is not None])


def descend(
    target: Target | LossTarget,
    p: Float[Tensor, "N V"],
    t: Float[Tensor, "N V"],
    d: Float[Tensor, " V"],
    side: SideInputs | None = None,
) -> Float[Tensor, "N V"]:
    """The end of the natural-gradient flow dp = Σ_y d_y·scale·(Q(y) − p) from p: its rest points are training's."""
    n, v = p.shape
    labels = torch.arange(v).repeat(n)
    top = kept(t.repeat_interleave(v, dim=0))
    each_side = (side or SideInputs())[torch.arange(n).repeat_interleave(v)]
    for _ in range(STEPS):
        logits = p.clamp(min=1e-12).log().repeat_interleave(v, dim=0)
        view = TokenView.of(logits, labels, top, each_side)
        q = target(view)
        each_p = logits.exp()
        # A scale above 1 would overshoot; dividing by it changes the speed, not where the flow rests.
        scale = q.scale / q.scale.view(n, v).amax(dim=-1).clamp(min=1.0).repeat_interleave(v)
        pull = scale[:, None] * (q.dense(each_p) - each_p)
        step = torch.einsum("y,nyv->nv", d, pull.view(n, v, v))
        p = (p + STEP * step).clamp(min=0.0)
        p = p / p.sum(dim=-1, keepdim=True)
        if float(step.abs().max()) < STILL:
            break
    return p
