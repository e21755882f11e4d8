"""The numbers of `measure_alignment` in sentences: facts about data and teacher, and which target they suggest."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

SURE = 0.9  # probability from which the teacher counts as sure of its first choice
CALIBRATED_WITHIN = 0.05  # between a sure teacher's confidence and its accuracy
COMPARED = ("sft", "dft", "target_sft", "kd")  # the targets in the sentences; the page's table has all
CAVEAT = "These are probabilities before training: a reason to try a target first, not a result."


def in_words(data: Mapping[str, Any]) -> list[str]:
    """Return what `measure_alignment` found: facts, then what they suggest."""
    return [*facts(data), *suggestions(data)]


def facts(data: Mapping[str, Any]) -> list[str]:
    """Return the numbers in sentences."""
    shares = {name: _percent(share) for name, share in data["shares"].items()}
    effects = {name: data["targets"][name] for name in COMPARED if name in data["targets"]}
    if not effects:
        effects = data["targets"]
    trains_on = ", ".join(f"{name} {_percent(effect['trains_on'])}" for name, effect in effects.items())
    on_filter = ", ".join(f"{name} {_percent(effect['quadrants']['filter'])}" for name, effect in effects.items())
    return [
        f"Agreement, {shares['agree']} (Q3): both models find the label likely already. No target changes much here.",
        f"Correction, {shares['rescue']} (Q1, rescue): the teacher finds the label likely, the student does not. The "
        "student can learn these labels, and the teacher confirms them.",
        f"Noise or free choice, {shares['filter']} (Q2, filter): neither finds the label likely. It may be wording, "
        "a rare fact or a mistake.",
        f"Student only, {shares['student_only']} (Q4): the student finds the label likely and the teacher does not. "
        "Matching the teacher alone would unlearn these.",
        _calibration_fact(data["reliability"]),
        f"The label is among the teacher's top-k tokens at {_percent(data['label_in_topk'])} of the positions. It is "
        f"the teacher's first choice at {_percent(data['teacher_top1'])}, the student's at "
        f"{_percent(data['student_top1'])}.",
        f"Share of tokens a target would train on (it moves at least 5 % of the probability): {trains_on}.",
        f"Part of a target's gradient that falls on filter tokens: {on_filter}.",
    ]


def suggestions(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the numbers suggest."""
    shares = data["shares"]
    targets = data["targets"]
    if shares["agree"] > 0.9:
        yield "The student finds almost all of this data likely: with any target there is little to learn."
    if "sft" in targets and targets["sft"]["quadrants"]["filter"] > 0.5:
        yield _about_filter_tokens(targets)
    calibration = _calibration_suggestion(data["reliability"])
    if calibration is not None:
        yield calibration
    if shares["rescue"] < 0.02:
        yield _about_few_corrections(targets)
    elif shares["rescue"] >= 0.5 * shares["filter"]:
        yield (
            "Correction is a large part of the signal. dft gives unlikely labels almost no weight and would miss it; "
            "a target that reads the teacher (target_sft, kd_hybrid) keeps it."
        )
    if shares["student_only"] > 0.1:
        yield (
            "The teacher often finds labels unlikely that the student finds likely. Check that it fits this domain, "
            "or give it little weight (a small η)."
        )
    if data["label_in_topk"] < 0.95:
        yield (
            "Labels are often outside the teacher's top-k tokens, where tail='drop' gives them no weight. Capture a "
            "larger top_k or use tail='ghost'."
        )
    yield CAVEAT


def _about_filter_tokens(targets: Mapping[str, Any]) -> str:
    text = "More than half of what plain SFT would learn is labels that neither model finds likely."
    pulls = {
        name: targets[name]["moved"] * targets[name]["quadrants"]["filter"] for name in COMPARED if name in targets
    }
    weaker = [
        f"{name} {_percent(1 - pull / pulls['sft'], digits=0)}"
        for name, pull in pulls.items()
        if pull < 0.9 * pulls["sft"]
    ]
    if not weaker:
        return text
    return f"{text} Other targets change these tokens less than SFT: {', '.join(weaker)} less. Try them first."


def _about_few_corrections(targets: Mapping[str, Any]) -> str:
    text = "There is little for this teacher to correct."
    if "target_sft" not in targets or "dft" not in targets:
        return text
    # target_sft also moves probability where dft leaves the token alone.
    guided = targets["target_sft"]["moved"]
    plain = targets["dft"]["moved"]
    figures = f"target_sft moves {guided:.3f} of the probability per token, dft {plain:.3f}"
    if abs(guided - plain) <= 0.2 * max(guided, plain):
        return f"{text} target_sft and dft are close: {figures}."
    return f"{text} target_sft and dft still differ, in the tokens beside the label: {figures}."


class _SureTokens(NamedTuple):
    """The first choices of which the teacher is sure: their number, mean probability and share that are the label."""

    tokens: int
    confidence: float
    accuracy: float


def _sure_tokens(reliability: Mapping[str, Any]) -> _SureTokens | None:
    is_sure = np.array(reliability["from"]) >= SURE - 1e-9
    counts = np.where(is_sure, reliability["count"], 0)
    total = int(counts.sum())
    if total == 0:
        return None
    confidence = float(counts @ np.array(reliability["confidence"]) / total)
    accuracy = float(counts @ np.array(reliability["accuracy"]) / total)
    return _SureTokens(total, confidence, accuracy)


def _calibration_fact(reliability: Mapping[str, Any]) -> str:
    sure = _sure_tokens(reliability)
    if sure is None:
        return f"The teacher is nowhere {_percent(SURE, digits=0)} sure of a token."
    return (
        f"Where the teacher is at least {_percent(SURE, digits=0)} sure of a token ({sure.tokens:,} times, "
        f"{_percent(sure.confidence)} on average), that token is the label {_percent(sure.accuracy)} of the time."
    )


def _calibration_suggestion(reliability: Mapping[str, Any]) -> str | None:
    sure = _sure_tokens(reliability)
    if sure is None:
        return None
    gap = sure.confidence - sure.accuracy
    if gap <= CALIBRATED_WITHIN:
        return "The teacher is calibrated where it is sure: the labels agree with it as often as it predicts."
    return (
        f"The teacher is overconfident where it is sure: the labels agree {100 * gap:.1f} points less often than it "
        "predicts. Either the demonstrations have mistakes there or the teacher is wrong. The numbers cannot tell "
        "which, and target_sft and kd follow the teacher. Read the tokens with the largest difference; if the teacher "
        "is wrong, choose a target without one (dft, beyond_log)."
    )


def _percent(share: float, digits: int = 1) -> str:
    """Return a share as a percentage with a no-break space."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"
