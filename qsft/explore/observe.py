"""Observe student, teacher and target at every label token of a document, without training.

An observer takes the target's place inside `model(…, target=…)` and receives what the target would receive in training,
shifted and aligned by the fused head, a few tokens at a time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from qsft.losses.evaluation_mode import evaluating
from qsft.losses.head import attach_target_head
from qsft.losses.sums import quadrant
from qsft.targets.target import Mixture, Target
from qsft.targets.trust import Constant
from qsft.targets.view import Full, TokenView, TopK
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import label_positions
from qsft.teacher.live import LiveTeacher

Teacher = TeacherCache | LiveTeacher | None
Document = Mapping[str, Any]  # input_ids, labels, and what the target reads beside them (critical)
OnTile = Callable[[TokenView, Mixture], None]

TILE_BYTES = 32 * 2**20  # of one dense distribution over the vocabulary; a handful of them exist at a time


@dataclass(frozen=True)
class Observer:
    """A trust with γ = 1 that passes every view, with the mixture that `target` makes of it, to `on_tile`."""

    target: Target
    on_tile: OnTile
    needs: frozenset[str]

    def __call__(self, view: TokenView) -> Tensor:
        if not view.lse.isfinite().all():
            raise ValueError(
                "the student's logits are NaN or infinite at a label token, so nothing about it would be true. Its "
                "weights may be damaged, or its dtype too narrow: try float32 or bfloat16."
            )
        step = max(1, TILE_BYTES // (4 * view.logits.shape[-1]))
        for start in range(0, len(view.labels), step):
            tokens = slice(start, start + step)
            teacher = None if view.teacher is None else view.teacher[tokens]
            tile = TokenView(view.logits[tokens], view.labels[tokens], view.lse[tokens], teacher, view.side[tokens])
            self.on_tile(tile, self.target(tile))
        return torch.ones_like(view.lse)


@torch.no_grad()
def observe(model: nn.Module, document: Document, target: Target, teacher: Teacher, on_tile: OnTile) -> None:
    """Run the model over one document and pass the views and mixtures of training with `target` to `on_tile`."""
    attach_target_head(model)
    # The target's scale stays: it may need the log-probs of the whole document. A LossTarget has none.
    scale = Constant(1.0) if target.scale is None else target.scale
    observer = Target(Observer(target, on_tile, target.needs), scale=scale)
    device = next(model.parameters()).device
    input_ids = _as_batch(document["input_ids"]).to(device)
    labels = _as_batch(document["labels"]).to(device)
    side: dict[str, Tensor] = {}
    if "document" in observer.needs:
        side["document"] = torch.zeros_like(input_ids)
    if "critical" in observer.needs and "critical" in document:
        side["critical"] = torch.tensor(np.asarray(document["critical"]))[None].to(device)
    teacher_logps = _teacher_logps(teacher, input_ids, labels)
    with evaluating(model):
        model(input_ids=input_ids, labels=labels, target=observer, teacher=teacher_logps, **side)


def _as_batch(values: Any) -> Tensor:
    return torch.tensor(np.asarray(values)).long()[None]


def _teacher_logps(teacher: Teacher, input_ids: Tensor, labels: Tensor) -> Any:
    if isinstance(teacher, TeacherCache):
        return teacher.lookup(input_ids[0].cpu(), labels[0].cpu())
    if isinstance(teacher, LiveTeacher):
        return teacher(input_ids, labels)
    return None


@dataclass(frozen=True)
class Alternatives:
    """Per label token the likeliest tokens of student and teacher; some occur twice. Arrays are [N, A]."""

    ids: np.ndarray
    p: np.ndarray
    t: np.ndarray
    q: np.ndarray


@dataclass(frozen=True)
class Observations:
    """What was observed at the N label tokens of a document.

    Args:
        positions: the tokens' positions in the document.
        labels: the tokens.
        p: p_θ of the label.
        t: p_T of the label; NaN where it is not known.
        gamma: γ.
        q: Q of the label.
        gradient: on the label's logit, scale·(p_y − Q_y).
        quadrant: an index into QUADRANTS, or UNKNOWN.
    """

    positions: np.ndarray
    labels: np.ndarray
    p: np.ndarray
    t: np.ndarray
    gamma: np.ndarray
    q: np.ndarray
    gradient: np.ndarray
    quadrant: np.ndarray
    alternatives: Alternatives


def read_document(
    model: nn.Module, document: Document, target: Target, teacher: Teacher = None, *, top: int = 4
) -> Observations | None:
    """Return the observations at the label tokens of one document; None if it has none.

    Args:
        top: how many of the likeliest tokens of student and of teacher are returned as alternatives.
    """
    tiles: list[dict[str, Tensor]] = []
    observe(model, document, target, teacher, lambda view, mixture: tiles.append(_read_tile(view, mixture, top)))
    if not tiles:
        return None
    found = {name: torch.cat([tile[name] for tile in tiles]).cpu().numpy() for name in tiles[0]}
    return Observations(
        positions=label_positions(document["labels"]),
        labels=found["labels"],
        p=found["p"],
        t=found["t"],
        gamma=found["gamma"],
        q=found["q"],
        gradient=found["gradient"],
        quadrant=quadrant(found["p"], found["t"]),
        alternatives=Alternatives(
            found["alternative_ids"], found["alternative_p"], found["alternative_t"], found["alternative_q"]
        ),
    )


def _read_tile(view: TokenView, mixture: Mixture, top: int) -> dict[str, Tensor]:
    p = (view.logits - view.lse[:, None]).exp()
    q = mixture.dense(p)
    t = _teacher_probs(view)
    p_y = p.gather(-1, view.labels[:, None])[:, 0]
    q_y = q.gather(-1, view.labels[:, None])[:, 0]
    student_top = p.topk(min(top, p.shape[-1]), dim=-1).indices
    teacher_top = t.nan_to_num(-1.0).topk(student_top.shape[-1], dim=-1)
    # Where the teacher has fewer tokens, the student's first choice fills the place.
    ids = torch.cat([student_top, torch.where(teacher_top.values < 0, student_top[:, :1], teacher_top.indices)], dim=-1)
    return {
        "labels": view.labels,
        "p": p_y,
        "t": teacher_label_probs(view),
        "gamma": mixture.gamma,
        "q": q_y,
        "gradient": mixture.scale * (p_y - q_y),
        "alternative_ids": ids,
        "alternative_p": p.gather(-1, ids),
        "alternative_t": t.gather(-1, ids),
        "alternative_q": q.gather(-1, ids),
    }


def teacher_label_probs(view: TokenView) -> Float[Tensor, " N"]:
    """Return p_T of each label; NaN where it is not known."""
    teacher = top_k_teacher(view)
    if teacher is None or teacher.label_logp is None:
        return torch.full_like(view.lse, torch.nan)
    return teacher.label_logp.exp().masked_fill(teacher.empty, torch.nan)


def top_k_teacher(view: TokenView) -> TopK | None:
    """Return the view's teacher: caches and live teachers give top-k log-probs."""
    assert not isinstance(view.teacher, Full)
    return view.teacher


def _teacher_probs(view: TokenView) -> Float[Tensor, "N V"]:
    """Return p_T of every token; NaN where it is not known."""
    n, vocab_size = view.logits.shape
    # Empty slots, whose ids mean nothing, go to a column of their own.
    probs = view.logits.new_full((n, vocab_size + 1), torch.nan)
    teacher = top_k_teacher(view)
    if teacher is not None:
        ids = torch.where(teacher.live, teacher.ids, vocab_size)
        probs.scatter_(-1, ids, teacher.logps.exp().to(probs.dtype))
    return probs[:, :-1]
