"""Where student and teacher agree on the data's tokens, counted over a sample of documents in constant memory, and what
the counts say in plain sentences, so that a target can be chosen before a GPU day is spent."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from qsft.explore.tokens import Document, Teacher, Words, observe, teacher_label_probs, visible
from qsft.losses.sums import HIGH, QUADRANTS, UNKNOWN, quadrant
from qsft.targets.registry import TARGETS
from qsft.targets.target import Mixture, Target
from qsft.targets.view import ROLES, Full, TokenView

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BINS = 20
MOVED = 0.05  # a target trains on a token when it asks for at least this much probability to move
MOST_WORDS = 15
SURE = 0.9
GAP = 0.05  # between claim and labels: below, a sure teacher is as right as it says
SHOWN = ("sft", "dft", "target_sft", "kd")  # the targets that sentences compare; the table has all
CAVEAT = "This reads probabilities before training; it is a reason to try a target first, not a result."


@dataclass
class Counts:
    """Sums over label tokens; documents are added one at a time and forgotten."""

    targets: Mapping[str, Target]
    high: float = HIGH
    # documents, tokens, unknown (the teacher says nothing), label_in_topk, teacher_top1, student_top1
    of: Counter[str] = field(default_factory=Counter)
    histogram: np.ndarray = field(default_factory=lambda: np.zeros((BINS, BINS), dtype=np.int64))  # [p_T, p_θ]
    words: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in (*QUADRANTS, "all")})
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)  # by target and quadrant: probability
    trained: Counter[str] = field(default_factory=Counter)
    # The teacher's first choice claims a probability; by the claim: how often made, how much claimed, how often right.
    claims: np.ndarray = field(default_factory=lambda: np.zeros((3, BINS)))
    doubted: Counter[int] = field(default_factory=Counter)  # by first choice: claimed minus borne out
    chosen: Counter[int] = field(default_factory=Counter)

    def add(self, view: TokenView, _: Mixture) -> None:
        """Count the tokens of a view that has a teacher."""
        p, t = view.label_logp.exp().cpu().numpy(), teacher_label_probs(view).cpu().numpy()
        kind, labels = quadrant(p, t, self.high), view.labels.cpu().numpy()
        known = kind != UNKNOWN
        top1 = int((view.logits.argmax(dim=-1) == view.labels).sum())
        self.of.update(tokens=len(p), unknown=int((~known).sum()), student_top1=top1)
        np.add.at(self.histogram, (_bin(t[known]), _bin(p[known])), 1)
        self.words["all"].update(labels[known].tolist())
        for index, name in enumerate(QUADRANTS):
            self.words[name].update(labels[kind == index].tolist())
        self._add_teacher(view)
        probs = (view.logits - view.lse[:, None]).exp()
        for name, target in self.targets.items():
            q = target(view)
            # ½·Σ_v |scale·(p − Q)|: how much probability the target asks to move at each token
            moved = (0.5 * q.scale.abs() * (probs - q.dense(probs)).abs().sum(dim=-1)).cpu().numpy()
            self.trained[name] += int((moved >= MOVED).sum())
            self.moved.update({(name, of): moved[kind == index].sum().item() for index, of in enumerate(QUADRANTS)})

    def _add_teacher(self, view: TokenView) -> None:
        """Count how often the teacher kept the label, and by claim how often its first choice is the label."""
        teacher, labels = view.teacher, view.labels
        assert teacher is not None
        claim, first = teacher.logps.max(dim=-1)
        said = in_topk = torch.ones_like(labels, dtype=torch.bool)
        if not isinstance(teacher, Full):
            first, said = teacher.ids.gather(-1, first[:, None])[:, 0], ~teacher.empty
            in_topk = ((teacher.ids == labels[:, None]) & teacher.live).any(dim=-1)
        claims, right = claim[said].exp().double().cpu().numpy(), (first == labels)[said].cpu().numpy()
        self.of.update(label_in_topk=int(in_topk.sum()), teacher_top1=int(right.sum()))
        for row, values in enumerate((np.ones_like(claims), claims, right)):
            np.add.at(self.claims[row], _bin(claims), values)
        for token, excess in zip(first[said].tolist(), (claims - right).tolist()):
            self.doubted[token] += excess
            self.chosen[token] += 1


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
        observe(model, document, TARGETS["sft"](), teacher, counts.add)
        counts.of["documents"] += 1
    if not counts.of["tokens"] - counts.of["unknown"]:
        raise ValueError("none of the documents has a label token the teacher knows; there is nothing to compare.")
    return _summary(counts, Words(tokenizer))


def comparable_targets(yours: Target | None = None) -> dict[str, Target]:
    """The named targets, with their defaults, that need no more than a teacher, and `yours` unless it is among them."""
    made: dict[str, Target] = {name: build() for name, build in TARGETS.items()}
    if yours is not None and yours not in made.values():
        made["yours"] = yours
    return {name: target for name, target in made.items() if target.needs <= set(ROLES)}


def _summary(counts: Counts, words: Words) -> dict[str, Any]:
    def named(found: Counter[int]) -> list[tuple[int, str, Any]]:
        return [(token, visible(words.alone(token)), count) for token, count in found.most_common(MOST_WORDS)]

    tokens, all_words = counts.of["tokens"], counts.words["all"]
    totals = {name: counts.words[name].total() for name in QUADRANTS}
    moved = {name: sum(counts.moved[name, of] for of in QUADRANTS) for name in counts.targets}
    filled = counts.claims[0] > 0
    made, claimed, right = counts.claims[:, filled]
    return {
        "documents": counts.of["documents"],
        "label_tokens": tokens,
        "unknown_tokens": counts.of["unknown"],
        "high": counts.high,
        "quadrants": totals,
        "shares": {name: total / (tokens - counts.of["unknown"]) for name, total in totals.items()},
        **{name: counts.of[name] / tokens for name in ("label_in_topk", "teacher_top1", "student_top1")},
        "histogram": counts.histogram.tolist(),
        "words": {
            name: [{"token": text, "count": count, "of": all_words[i]} for i, text, count in named(counts.words[name])]
            for name in ("rescue", "filter")
        },
        "targets": {
            name: {
                "trains_on": counts.trained[name] / tokens,
                "moved": total / tokens,
                "quadrants": {of: counts.moved[name, of] / (total or 1.0) for of in QUADRANTS},
            }
            for name, total in moved.items()
        },
        # By the probability of the teacher's first choice; and the first choices that the labels bear out least.
        "reliability": {
            "from": (np.arange(BINS)[filled] / BINS).tolist(),
            "count": made.astype(int).tolist(),
            "claimed": (claimed / made).tolist(),
            "borne_out": (right / made).tolist(),
            "doubted": [
                {"token": text, "claims": counts.chosen[i], "excess": round(excess, 2)}
                for i, text, excess in named(counts.doubted)
                if excess > 0
            ],
        },
    }


def _bin(values: np.ndarray) -> np.ndarray:
    return np.asarray(np.clip((values * BINS).astype(int), 0, BINS - 1))


# ---- in words ----


def in_words(data: Mapping[str, Any]) -> list[str]:
    """What `measure_alignment` found about this data with this teacher: facts, then what they suggest."""
    return [*facts(data), *suggestions(data)]


def facts(data: Mapping[str, Any]) -> list[str]:
    shares, effects = {name: _percent(share) for name, share in data["shares"].items()}, data["targets"]
    compared = [(name, effects[name]) for name in SHOWN if name in effects] or effects.items()
    trains = ", ".join(f"{name} {_percent(effect['trains_on'])}" for name, effect in compared)
    filters = ", ".join(f"{name} {_percent(effect['quadrants']['filter'])}" for name, effect in compared)
    return [
        f"Agreement, {shares['agree']} (Q3): both models find the label likely already. No target has much to do.",
        f"Correction, {shares['rescue']} (Q1, rescue): the teacher finds the label likely, the student does not. The "
        "data teach something, and the teacher confirms it.",
        f"Noise or free choice, {shares['filter']} (Q2, filter): neither finds the label likely. It may be wording, "
        "a rare fact or a mistake.",
        f"Student only, {shares['student_only']} (Q4): the student finds the label likely and the teacher does not. "
        "Matching the teacher alone would unlearn these.",
        _about_sure(data["reliability"])[0],
        f"The label is among the tokens the teacher kept at {_percent(data['label_in_topk'])} of the positions; it is "
        f"the teacher's first choice at {_percent(data['teacher_top1'])}, the student's at "
        f"{_percent(data['student_top1'])}.",
        f"Share of tokens a target would train on (it asks at least 5 % of the probability to move): {trains}.",
        f"Part of a target's pull that falls on filter tokens: {filters}.",
    ]


def suggestions(data: Mapping[str, Any]) -> Iterator[str]:
    shares, targets = data["shares"], data["targets"]
    if shares["agree"] > 0.9:
        yield "The student writes this data almost by itself: whatever the target, there is little to learn."
    if "sft" in targets and targets["sft"]["quadrants"]["filter"] > 0.5:
        pulls = {name: e["moved"] * e["quadrants"]["filter"] for name, e in targets.items() if name in SHOWN}
        less = [f"{name} {1 - pull / pulls['sft']:.0%}" for name, pull in pulls.items() if pull < 0.9 * pulls["sft"]]
        remedy = f" On the same tokens other targets pull less: {', '.join(less)} less. Try them first." if less else ""
        yield f"More than half of what plain SFT would learn is text that neither model believes.{remedy}"
    if about_sure := _about_sure(data["reliability"])[1]:
        yield about_sure
    if shares["rescue"] < 0.02:
        said = ""
        if {"target_sft", "dft"} <= set(targets):  # target also moves mass where dft leaves the token alone
            guided, plain = targets["target_sft"]["moved"], targets["dft"]["moved"]
            close = abs(guided - plain) <= 0.2 * max(guided, plain)
            said = " The two stay close" if close else " They differ all the same, in what they ask beside the label"
            said += f": target asks to move {guided:.3f} of the probability per token, dft {plain:.3f}."
        yield f"There is little for this teacher to correct.{said}"
    elif shares["rescue"] >= 0.5 * shares["filter"]:
        yield (
            "Correction is a large part of the signal. dft gives unlikely labels almost no weight and would miss it; "
            "a target that reads the teacher (target, kd_hybrid) keeps it."
        )
    if shares["student_only"] > 0.1:
        yield (
            "The teacher often doubts labels that the student finds likely. Check that it fits this domain, or keep "
            "its say small (a small η)."
        )
    if data["label_in_topk"] < 0.95:
        yield (
            "Labels are often outside the teacher's kept tokens, where tail='drop' gives them no pull. Capture more "
            "of them (a larger k) or use tail='ghost'."
        )
    yield CAVEAT


def _about_sure(reliability: Mapping[str, Any]) -> tuple[str, str]:
    """How often the labels bear out what the teacher is sure of, and if that is a reason to trust it or to doubt it."""
    counts = np.where(np.array(reliability["from"]) >= SURE - 1e-9, reliability["count"], 0)
    if not counts.any():
        return f"The teacher is nowhere {SURE:.0%} sure of a token.", ""
    claimed, right = (counts @ np.array(reliability[name]) / counts.sum() for name in ("claimed", "borne_out"))
    found = (
        f"Where the teacher is at least {SURE:.0%} sure of a token ({counts.sum():,} times, {_percent(claimed)} on "
        f"average), the data write that token {_percent(right)} of the time."
    )
    if claimed - right <= GAP:
        return found, "What this teacher is sure of, the data bear out: they give no reason to doubt it."
    return found, (
        f"Of what this teacher is sure of, {_percent(claimed - right)} is not borne out. Either the demonstrations "
        "slip there or the teacher is wrong: the numbers cannot tell which, and target and kd side with the teacher. "
        "Read the tokens it is least borne out on; if it is the teacher, take a row that reads none (dft, beyond_log)."
    )


def _percent(share: float) -> str:
    """A share as a percentage with one digit; the space does not break."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"
