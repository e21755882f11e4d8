"""How student and teacher agree on the label tokens of some documents, counted in constant memory."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from qsft.explore.observe import Document, Teacher, observe, teacher_label_probs, top_k_teacher
from qsft.explore.token_text import TokenText, table_text
from qsft.losses.sums import HIGH, QUADRANTS, UNKNOWN, quadrant
from qsft.targets.registry import TARGETS, make_target
from qsft.targets.target import Mixture, Target
from qsft.targets.view import ROLES, TokenView

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BINS = 20
TRAINED_FROM = 0.05  # a target trains on a token when it moves at least this much probability there
MOST_LISTED = 15  # tokens in each list of frequent ones


def _zeros() -> np.ndarray:
    return np.zeros(BINS)


@dataclass
class Reliability:
    """The teacher's first choices, by bins of their probability, against the labels.

    Args:
        count: first choices in the bin.
        confidence: sum of their probabilities.
        correct: how many of them are the label.
        chosen: by token: how often it is the first choice.
        excess: by token: sum of its probability as a first choice, minus how often it is the label.
    """

    count: np.ndarray = field(default_factory=_zeros)
    confidence: np.ndarray = field(default_factory=_zeros)
    correct: np.ndarray = field(default_factory=_zeros)
    chosen: Counter[int] = field(default_factory=Counter)
    excess: Counter[int] = field(default_factory=Counter)

    def add(self, tokens: np.ndarray, probs: np.ndarray, is_label: np.ndarray) -> None:
        """Count first choices with their probabilities."""
        bins = _bin(probs)
        np.add.at(self.count, bins, 1)
        np.add.at(self.confidence, bins, probs)
        np.add.at(self.correct, bins, is_label)
        for token, excess in zip(tokens.tolist(), (probs - is_label).tolist()):
            self.chosen[token] += 1
            self.excess[token] += excess


@dataclass
class Counts:
    """Sums over label tokens; documents are added one at a time.

    Args:
        high: probability from which a label counts as likely.
        histogram: label tokens by bins of [p_T, p_θ].
        tokens_by_quadrant: by quadrant, how often each token is the label; "all" for every known one.
        moved: by target and quadrant, the probability that the target moves.
        trained: by target, the number of tokens at which it moves at least TRAINED_FROM.
    """

    targets: Mapping[str, Target]
    high: float = HIGH
    documents: int = 0
    label_tokens: int = 0
    unknown_tokens: int = 0
    label_in_topk: int = 0
    teacher_top1: int = 0
    student_top1: int = 0
    histogram: np.ndarray = field(default_factory=lambda: np.zeros((BINS, BINS), dtype=np.int64))
    tokens_by_quadrant: dict[str, Counter[int]] = field(
        default_factory=lambda: {name: Counter() for name in (*QUADRANTS, "all")}
    )
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    trained: Counter[str] = field(default_factory=Counter)
    reliability: Reliability = field(default_factory=Reliability)

    def add(self, view: TokenView, _: Mixture) -> None:
        """Count the tokens of a view that has a teacher."""
        p = view.label_logp.exp().cpu().numpy()
        t = teacher_label_probs(view).cpu().numpy()
        labels = view.labels.cpu().numpy()
        quadrants = quadrant(p, t, self.high)
        known = quadrants != UNKNOWN
        self.label_tokens += len(p)
        self.unknown_tokens += int((~known).sum())
        self.student_top1 += int((view.logits.argmax(dim=-1) == view.labels).sum())
        np.add.at(self.histogram, (_bin(t[known]), _bin(p[known])), 1)
        self.tokens_by_quadrant["all"].update(labels[known].tolist())
        for index, name in enumerate(QUADRANTS):
            self.tokens_by_quadrant[name].update(labels[quadrants == index].tolist())
        self._add_teacher(view)
        self._add_targets(view, quadrants)

    def _add_teacher(self, view: TokenView) -> None:
        """Count how often the teacher kept the label, and how often its first choice is the label."""
        teacher = top_k_teacher(view)
        assert teacher is not None
        is_known = ~teacher.empty
        self.label_in_topk += int(((teacher.ids == view.labels[:, None]) & teacher.live).any(dim=-1).sum())
        logps, slots = teacher.logps.max(dim=-1)
        first = teacher.ids.gather(-1, slots[:, None])[:, 0]
        is_label = (first == view.labels)[is_known].cpu().numpy()
        self.teacher_top1 += int(is_label.sum())
        probs = logps[is_known].exp().double().cpu().numpy()
        self.reliability.add(first[is_known].cpu().numpy(), probs, is_label)

    def _add_targets(self, view: TokenView, quadrants: np.ndarray) -> None:
        """Count what each target would do: ½·Σ_v |scale·(p − Q)| is the probability that it moves at a token."""
        p = (view.logits - view.lse[:, None]).exp()
        for name, target in self.targets.items():
            mixture = target(view)
            distance = (p - mixture.dense(p)).abs().sum(dim=-1)
            moved = (0.5 * mixture.scale.abs() * distance).cpu().numpy()
            self.trained[name] += int((moved >= TRAINED_FROM).sum())
            for index, kind in enumerate(QUADRANTS):
                self.moved[name, kind] += moved[quadrants == index].sum().item()


def measure_alignment(
    model: nn.Module,
    tokenizer: "PreTrainedTokenizerBase",
    documents: Iterable[Document],
    teacher: Teacher,
    *,
    n: int = 200,
    targets: Mapping[str, Target] | None = None,
    high: float = HIGH,
) -> dict[str, Any]:
    """Return heat map, quadrants, frequent tokens, reliability and what each target would do, as JSON-able data.

    Args:
        n: documents at most.
        targets: the targets to compare; by default every named one that reads nothing but logits and teacher.
        high: probability from which a label counts as likely.
    """
    if not 0.0 < high < 1.0:
        raise ValueError(f"high separates likely from unlikely labels and must be between 0 and 1, got high={high}.")
    if teacher is None:
        raise ValueError("alignment compares student and teacher, but no teacher was given: pass a TeacherCache.")
    counts = Counts(comparable_targets() if targets is None else targets, high)
    for document in islice(documents, n):
        observe(model, document, make_target("sft"), teacher, counts.add)
        counts.documents += 1
    if counts.label_tokens == counts.unknown_tokens:
        raise ValueError(
            "none of the documents has a label token with teacher log-probs, so there is nothing to compare. Choose "
            "documents that the teacher cache contains."
        )
    return _as_data(counts, TokenText(tokenizer))


def comparable_targets(yours: Target | None = None) -> dict[str, Target]:
    """Return the named targets that need no more than a teacher, and `yours` unless it is among them."""
    targets = {name: make_target(name) for name in TARGETS}
    if yours is not None and yours not in targets.values():
        targets["yours"] = yours
    return {name: target for name, target in targets.items() if target.needs <= set(ROLES)}


def _as_data(counts: Counts, text: TokenText) -> dict[str, Any]:
    known = counts.label_tokens - counts.unknown_tokens
    totals = {name: counts.tokens_by_quadrant[name].total() for name in QUADRANTS}
    return {
        "documents": counts.documents,
        "label_tokens": counts.label_tokens,
        "unknown_tokens": counts.unknown_tokens,
        "high": counts.high,
        "quadrants": totals,
        "shares": {name: total / known for name, total in totals.items()},
        "label_in_topk": counts.label_in_topk / counts.label_tokens,
        "teacher_top1": counts.teacher_top1 / counts.label_tokens,
        "student_top1": counts.student_top1 / counts.label_tokens,
        "histogram": counts.histogram.tolist(),
        "frequent_tokens": {name: _frequent_tokens(counts, name, text) for name in ("rescue", "filter")},
        "targets": {name: _target_effect(counts, name) for name in counts.targets},
        "reliability": _reliability_data(counts.reliability, text),
    }


def _frequent_tokens(counts: Counts, quadrant_name: str, text: TokenText) -> list[dict[str, Any]]:
    """Return the tokens that are most often in a quadrant: how often, and how often they are labels at all."""
    occurrences = counts.tokens_by_quadrant["all"]
    return [
        {"token": table_text(text.alone(token)), "count": count, "of": occurrences[token]}
        for token, count in counts.tokens_by_quadrant[quadrant_name].most_common(MOST_LISTED)
    ]


def _target_effect(counts: Counts, name: str) -> dict[str, Any]:
    """Return what a target would do: the share of tokens, the probability moved per token, its parts by quadrant."""
    moved = {kind: counts.moved[name, kind] for kind in QUADRANTS}
    total = sum(moved.values())
    return {
        "trains_on": counts.trained[name] / counts.label_tokens,
        "moved": total / counts.label_tokens,
        "quadrants": {kind: part / total if total > 0 else 0.0 for kind, part in moved.items()},
    }


def _reliability_data(reliability: Reliability, text: TokenText) -> dict[str, Any]:
    """Return mean confidence and accuracy of the teacher's first choices by bin, and the most overconfident tokens."""
    filled = reliability.count > 0
    count = reliability.count[filled]
    return {
        "from": (np.arange(BINS)[filled] / BINS).tolist(),
        "count": count.astype(int).tolist(),
        "confidence": (reliability.confidence[filled] / count).tolist(),
        "accuracy": (reliability.correct[filled] / count).tolist(),
        "overconfident": [
            {"token": table_text(text.alone(token)), "count": reliability.chosen[token], "excess": round(excess, 2)}
            for token, excess in reliability.excess.most_common(MOST_LISTED)
            if excess > 0
        ],
    }


def _bin(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip((values * BINS).astype(int), 0, BINS - 1))
