"""Where student and teacher agree on the data's tokens, counted over a sample of documents in constant memory."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from qsft.explore.probe import AnyTarget, Document, Teacher, observe, observing, teacher_label_probs
from qsft.explore.words import Words, visible
from qsft.losses.sums import HIGH, QUADRANTS, quadrant
from qsft.targets.target import Mixture
from qsft.targets.view import ROLES, Full, TokenView
from qsft.targets.zoo import TARGETS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BINS = 20
MOVED = 0.05  # a target trains on a token when it asks for at least this much probability to move
MOST_WORDS = 15


@dataclass
class Counts:
    """Sums over label tokens; documents are added one at a time and forgotten."""

    targets: Mapping[str, AnyTarget]
    high: float = HIGH
    # documents, tokens, unknown (the teacher says nothing), label_in_topk, teacher_top1, student_top1
    of: Counter[str] = field(default_factory=Counter)
    histogram: np.ndarray = field(default_factory=lambda: np.zeros((BINS, BINS), dtype=np.int64))  # [p_T, p_θ]
    words: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in (*QUADRANTS, "all")})
    moved: dict[str, np.ndarray] = field(default_factory=dict)  # per target: moved mass by quadrant
    trained: Counter[str] = field(default_factory=Counter)
    # The teacher's first choice claims a probability; by the claim: how often made, how much claimed, how often right.
    claims: np.ndarray = field(default_factory=lambda: np.zeros((3, BINS)))
    doubted: Counter[int] = field(default_factory=Counter)  # by first choice: claimed minus borne out
    chosen: Counter[int] = field(default_factory=Counter)

    def add(self, view: TokenView, _: Mixture) -> None:
        """Count the tokens of a view that has a teacher."""
        p, t = view.label_logp.exp().cpu().numpy(), teacher_label_probs(view).cpu().numpy()
        kind, labels = quadrant(p, t, self.high), view.labels.cpu().numpy()
        known = kind >= 0
        top1 = int((view.logits.argmax(dim=-1) == view.labels).sum())
        self.of.update(tokens=len(p), unknown=int((~known).sum()), student_top1=top1)
        np.add.at(self.histogram, (_bin(t[known]), _bin(p[known])), 1)
        self.words["all"].update(labels[known].tolist())
        for index, name in enumerate(QUADRANTS):
            self.words[name].update(labels[kind == index].tolist())
        self._add_teacher(view)
        self._add_targets(view, kind)

    def _add_teacher(self, view: TokenView) -> None:
        teacher, labels = view.teacher, view.labels
        assert teacher is not None
        claim, slot = teacher.logps.max(dim=-1)
        if isinstance(teacher, Full):
            self.of["label_in_topk"] += len(labels)
            self._add_claims(slot, claim, labels)
        else:
            self.of["label_in_topk"] += int(((teacher.ids == labels[:, None]) & teacher.live).any(dim=-1).sum())
            said = ~teacher.empty
            self._add_claims(teacher.ids.gather(-1, slot[:, None])[said, 0], claim[said], labels[said])

    def _add_claims(self, first: Tensor, logp: Tensor, labels: Tensor) -> None:
        """Count how often the teacher's first choice is the label, by the probability it has."""
        claim, right = logp.exp().double().cpu().numpy(), (first == labels).cpu().numpy()
        self.of["teacher_top1"] += int(right.sum())
        for row, values in enumerate((np.ones_like(claim), claim, right)):
            np.add.at(self.claims[row], _bin(claim), values)
        for token, excess in zip(first.tolist(), (claim - right).tolist()):
            self.doubted[token] += excess
            self.chosen[token] += 1

    def _add_targets(self, view: TokenView, kind: np.ndarray) -> None:
        p = (view.logits - view.lse[:, None]).exp()
        for name, target in self.targets.items():
            moved = moved_mass(p, target(view)).cpu().numpy()
            self.trained[name] += int((moved >= MOVED).sum())
            by_quadrant = np.array([float(moved[kind == index].sum()) for index in range(len(QUADRANTS))])
            self.moved[name] = self.moved.get(name, 0.0) + by_quadrant


def measure_alignment(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    documents: Iterable[Document],
    teacher: Teacher,
    *,
    n: int = 200,
    targets: Mapping[str, AnyTarget] | None = None,
    high: float = HIGH,
) -> dict[str, Any]:
    """The numbers of the first `n` documents as JSON-able data: heat map, quadrants, words, what each target would do.

    `targets` are compared; by default every named one that reads nothing but logits and teacher. A probability of
    `high` or more counts as likely.
    """
    if not 0.0 < high < 1.0:
        raise ValueError(f"high={high} parts likely from unlikely labels: choose it between 0 and 1.")
    if teacher is None:
        raise ValueError("alignment compares student and teacher, but no teacher was given: pass a TeacherCache.")
    counts = Counts(comparable_targets() if targets is None else targets, high)
    for document in islice(documents, n):
        observe(model, document, observing(TARGETS["sft"](), counts.add), teacher)
        counts.of["documents"] += 1
    if not counts.of["tokens"] - counts.of["unknown"]:
        raise ValueError("none of the documents has a label token the teacher knows; there is nothing to compare.")
    return _summary(counts, Words(tokenizer))


def comparable_targets(yours: AnyTarget | None = None) -> dict[str, AnyTarget]:
    """The named targets, with their defaults, that need no more than a teacher, and `yours` unless it is among them."""
    made: dict[str, AnyTarget] = {name: build() for name, build in TARGETS.items()}
    if yours is not None and yours not in made.values():
        made["yours"] = yours
    return {name: target for name, target in made.items() if target.needs <= set(ROLES)}


def moved_mass(p: Tensor, q: Mixture) -> Tensor:
    """½·Σ_v |scale·(p − Q)|: how much probability the target asks to move at each token."""
    return 0.5 * q.scale.abs() * (p - q.dense(p)).abs().sum(dim=-1)


def _summary(counts: Counts, words: Words) -> dict[str, Any]:
    tokens = counts.of["tokens"]
    known = tokens - counts.of["unknown"]
    totals = {name: int(sum(counts.words[name].values())) for name in QUADRANTS}
    return {
        "documents": counts.of["documents"],
        "label_tokens": tokens,
        "unknown_tokens": counts.of["unknown"],
        "high": counts.high,
        "quadrants": totals,
        "shares": {name: total / known for name, total in totals.items()},
        **{name: counts.of[name] / tokens for name in ("label_in_topk", "teacher_top1", "student_top1")},
        "histogram": counts.histogram.tolist(),
        "words": {
            name: [
                {"token": visible(words.alone(token)), "count": count, "of": counts.words["all"][token]}
                for token, count in counts.words[name].most_common(MOST_WORDS)
            ]
            for name in ("rescue", "filter")
        },
        "targets": {name: _effect(counts, name) for name in counts.targets},
        "reliability": _reliability(counts, words),
    }


def _reliability(counts: Counts, words: Words) -> dict[str, Any]:
    """By the probability of the teacher's first choice: how often it was made, the mean claim, how often it was right;
    and the first choices that the labels bear out least."""
    filled = counts.claims[0] > 0
    made, claimed, right = counts.claims[:, filled]
    return {
        "from": (np.arange(BINS)[filled] / BINS).tolist(),
        "count": made.astype(int).tolist(),
        "claimed": (claimed / made).tolist(),
        "borne_out": (right / made).tolist(),
        "doubted": [
            {"token": visible(words.alone(token)), "claims": counts.chosen[token], "excess": round(excess, 2)}
            for token, excess in counts.doubted.most_common(MOST_WORDS)
            if excess > 0
        ],
    }


def _effect(counts: Counts, name: str) -> dict[str, Any]:
    total, tokens = float(counts.moved[name].sum()), counts.of["tokens"]
    shares = counts.moved[name] / (total or 1.0)
    shown = dict(zip(QUADRANTS, shares.tolist()))
    return {"trains_on": counts.trained[name] / tokens, "moved": total / tokens, "quadrants": shown}


def _bin(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip((values * BINS).astype(int), 0, BINS - 1))
