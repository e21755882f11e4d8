"""What student, teacher and target say at every label token of a document, read off the fused head while it runs.

An observer stands in for the real target inside `model(…, target=…)`: it sees what training would see, shifted and
aligned by the head, a few tokens at a time. One document is in memory at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from qsft.losses.head import attach_target_head
from qsft.losses.self_check import evaluating
from qsft.losses.sums import quadrant
from qsft.targets.induced import LossTarget
from qsft.targets.target import Mixture, Target
from qsft.targets.trust import Constant
from qsft.targets.view import Full, TokenView, TopK
from qsft.teacher.documents import label_positions
from qsft.teacher.live import LiveTeacher
from qsft.teacher.lookup import TeacherCache

AnyTarget = Target | LossTarget
Teacher = TeacherCache | LiveTeacher | None
Document = Mapping[str, Any]  # input_ids and labels, and what the target reads beside them (critical)
See = Callable[[TokenView, Mixture], None]

TILE_BYTES = 32 * 2**20  # of one dense distribution over the vocabulary; a handful of them exist at a time


@dataclass(frozen=True)
class Observer:
    """A trust that shows every view, with what `target` makes of it, to `see`; its own γ is 1."""

    target: AnyTarget
    see: See

    def __call__(self, view: TokenView) -> Tensor:
        step = max(1, TILE_BYTES // (4 * view.logits.shape[-1]))
        for start in range(0, len(view.labels), step):
            rows = slice(start, start + step)
            teacher = None if view.teacher is None else view.teacher[rows]
            piece = TokenView(view.logits[rows], view.labels[rows], view.lse[rows], teacher, view.side[rows])
            self.see(piece, self.target(piece))
        return torch.ones_like(view.lse)

    @property
    def needs(self) -> frozenset[str]:
        return self.target.needs


@dataclass(frozen=True)
class TokenReadings:
    """One document's N label tokens. Probabilities are numpy arrays; NaN where the teacher's is not known.

    `alternatives` holds the likeliest tokens of student and teacher [N, A], with p, t and q for each of them.
    """

    input_ids: np.ndarray
    positions: np.ndarray
    p: np.ndarray
    t: np.ndarray
    gamma: np.ndarray
    q: np.ndarray
    gradient: np.ndarray  # on the label: scale·(p_y − Q_y)
    alternatives: dict[str, np.ndarray]  # ids, p, t, q

    @property
    def labels(self) -> np.ndarray:
        return np.asarray(self.input_ids[self.positions])

    @property
    def quadrant(self) -> np.ndarray:
        """The index into QUADRANTS of each token, or UNKNOWN."""
        return np.asarray(quadrant(self.p, self.t))


def probe(
    model: nn.Module, documents: Iterable[Document], target: AnyTarget, teacher: Teacher = None, *, top: int = 4
) -> Iterator[TokenReadings]:
    """What is said at the label tokens of each document that has some, with `top` alternatives of each model."""
    for document in documents:
        if (seen := read_document(model, document, target, teacher, top=top)) is not None:
            yield seen


def read_document(
    model: nn.Module, document: Document, target: AnyTarget, teacher: Teacher = None, *, top: int = 4
) -> TokenReadings | None:
    """What is said at the label tokens of one document; None when it has none."""
    pieces: list[dict[str, Tensor]] = []
    observe(model, document, target, teacher, lambda view, q: pieces.append(_numbers(view, q, top)))
    if not pieces:
        return None
    columns = {name: torch.cat([piece[name] for piece in pieces]).cpu().numpy() for name in pieces[0]}
    alternatives = {name: columns.pop(f"alternative_{name}") for name in ("ids", "p", "t", "q")}
    input_ids = np.asarray(document["input_ids"])
    return TokenReadings(input_ids, label_positions(document["labels"]), **columns, alternatives=alternatives)


@torch.no_grad()
def observe(model: nn.Module, document: Document, target: AnyTarget, teacher: Teacher, see: See) -> None:
    """Run the model over one document and show to `see` what training with `target` would see; nothing is learnt."""
    attach_target_head(model)
    # The target's scale is kept: it may want the log-probs of the whole document beforehand.
    observer = Target(Observer(target, see), scale=getattr(target, "scale", Constant(1.0)))
    device = next(model.parameters()).device
    ids, labels = (torch.tensor(np.asarray(document[n]))[None].to(device).long() for n in ("input_ids", "labels"))
    extra = {"document": torch.zeros_like(ids)} if "document" in observer.needs else {}
    if "critical" in observer.needs and "critical" in document:
        extra["critical"] = torch.tensor(np.asarray(document["critical"]))[None].to(device)
    with evaluating(model):
        model(input_ids=ids, labels=labels, target=observer, teacher=_teacher_rows(teacher, ids, labels), **extra)


def teacher_label_probs(view: TokenView) -> Float[Tensor, " N"]:
    """p_T(y) of each label; NaN where it is not known, 0 for a label outside slots that came without its log-prob."""
    teacher = view.teacher
    if teacher is None:
        return torch.full_like(view.lse, torch.nan)
    if isinstance(teacher, Full):
        return teacher.logps.gather(-1, view.labels[:, None])[:, 0].exp()
    if teacher.label_logp is not None:
        known = teacher.label_logp.exp()
    else:
        known = torch.where(teacher.ids == view.labels[:, None], teacher.logps.exp(), 0.0).sum(dim=-1)
    return known.masked_fill(teacher.empty, torch.nan)


def _numbers(view: TokenView, q: Mixture, top: int) -> dict[str, Tensor]:
    p = (view.logits - view.lse[:, None]).exp()
    dense, t, label = q.dense(p), _teacher_probs(view), view.labels[:, None]
    p_y, q_y = (values.gather(-1, label)[:, 0] for values in (p, dense))
    own = p.topk(min(top, p.shape[-1]), dim=-1).indices
    best = t.nan_to_num(-1.0).topk(own.shape[-1], dim=-1)
    ids = torch.cat([own, torch.where(best.values < 0, own[:, :1], best.indices)], dim=-1)  # some stand twice
    return {
        "p": p_y,
        "t": teacher_label_probs(view),
        "gamma": q.gamma,
        "q": q_y,
        "gradient": q.scale * (p_y - q_y),
        "alternative_ids": ids,
        **{f"alternative_{name}": values.gather(-1, ids) for name, values in (("p", p), ("t", t), ("q", dense))},
    }


def _teacher_probs(view: TokenView) -> Float[Tensor, "N V"]:
    """p_T of every token; NaN where there is no teacher or a truncated one does not say."""
    teacher, (n, v) = view.teacher, view.logits.shape
    if isinstance(teacher, Full):
        return teacher.logps.exp()
    wide = view.logits.new_full((n, v + 1), torch.nan)
    if teacher is not None:  # empty slots, whose ids mean nothing, go to a column of their own
        wide.scatter_(-1, torch.where(teacher.live, teacher.ids, v), teacher.logps.exp().to(wide.dtype))
    return wide[:, :-1]


def _teacher_rows(teacher: Teacher, ids: Tensor, labels: Tensor) -> TopK | Full | None:
    if isinstance(teacher, TeacherCache):
        return teacher.lookup(ids[0].cpu(), labels[0].cpu())
    return None if teacher is None else teacher(ids, labels)
