"""The numbers of an alignment in plain sentences, so that a target can be chosen before a GPU day is spent."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

CAVEAT = "This reads probabilities before training; it is a reason to try a target first, not a result."


SURE = 0.9
GAP = 0.05  # between claim and labels: below, a sure teacher is as right as it says
SHOWN = ("sft", "dft", "target", "kd")  # the targets that sentences compare; the table has all


def in_words(data: Mapping[str, Any]) -> list[str]:
    """What `measure_alignment` found about this data with this teacher: facts, then what they suggest."""
    return [*facts(data), *suggestions(data)]


def facts(data: Mapping[str, Any]) -> list[str]:
    """What was counted."""
    shares = {name: _percent(share) for name, share in data["shares"].items()}
    return [
        f"Agreement, {shares['agree']} (Q3): both models find the label likely already. No target has much to do.",
        f"Correction, {shares['rescue']} (Q1, rescue): the teacher finds the label likely, the student does not. The "
        "data teach something, and the teacher confirms it.",
        f"Noise or free choice, {shares['filter']} (Q2, filter): neither finds the label likely. It may be wording, "
        "a rare fact or a mistake.",
        f"Student only, {shares['student_only']} (Q4): the student finds the label likely and the teacher does not. "
        "Matching the teacher alone would unlearn these.",
        _reliability(data["reliability"]),
        f"The label is among the tokens the teacher kept at {_percent(data['label_in_topk'])} of the positions; it is "
        f"the teacher's first choice at {_percent(data['teacher_top1'])}, the student's at "
        f"{_percent(data['student_top1'])}.",
        f"Share of tokens a target would train on (it asks at least 5 % of the probability to move): "
        f"{_compared(data, lambda effect: effect['trains_on'])}.",
        f"Part of a target's pull that falls on filter tokens: "
        f"{_compared(data, lambda effect: effect['quadrants']['filter'])}.",
    ]


def suggestions(data: Mapping[str, Any]) -> list[str]:
    """What the counts are a reason for."""
    return [*_suggestions(data), CAVEAT]


def _compared(data: Mapping[str, Any], value: Callable[[Mapping[str, Any]], float]) -> str:
    shown = [name for name in SHOWN if name in data["targets"]] or list(data["targets"])
    return ", ".join(f"{name} {_percent(value(data['targets'][name]))}" for name in shown)


def _suggestions(data: Mapping[str, Any]) -> Iterator[str]:
    shares = data["shares"]
    if shares["agree"] > 0.9:
        yield "The student writes this data almost by itself: whatever the target, there is little to learn."
    yield from _about_noise(data["targets"])
    yield from _about_reliability(data["reliability"])
    if shares["rescue"] < 0.02:
        yield f"There is little for this teacher to correct. {_target_and_dft(data['targets'])}".strip()
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


def _about_noise(targets: Mapping[str, Any]) -> Iterator[str]:
    """Whether most of SFT's pull is on tokens nobody believes, and how much less other targets pull there."""
    on_filter = {name: e["moved"] * e["quadrants"]["filter"] for name, e in targets.items() if name in SHOWN}
    if "sft" not in on_filter or targets["sft"]["quadrants"]["filter"] <= 0.5:
        return
    weaker = [
        f"{name} {1 - pull / on_filter['sft']:.0%}" for name, pull in on_filter.items() if pull < 0.9 * on_filter["sft"]
    ]
    remedy = f" On the same tokens other targets pull less: {', '.join(weaker)} less. Try them first." if weaker else ""
    yield f"More than half of what plain SFT would learn is text that neither model believes.{remedy}"


def _target_and_dft(targets: Mapping[str, Any]) -> str:
    """Whether the two ask for about as much; target also moves mass where dft leaves the token alone."""
    if not {"target", "dft"} <= set(targets):
        return ""
    guided, plain = targets["target"]["moved"], targets["dft"]["moved"]
    said = f"target asks to move {guided:.3f} of the probability per token, dft {plain:.3f}"
    if abs(guided - plain) <= 0.2 * max(guided, plain):
        return f"The two stay close: {said}."
    return f"They differ all the same, in what they ask beside the label: {said}."


def _sure(reliability: Mapping[str, Any]) -> tuple[int, float, float]:
    """(number, mean claim, share borne out) of the claims of SURE or more."""
    columns = (reliability[name] for name in ("from", "count", "claimed", "borne_out"))
    sure = [(count, count * claim, count * right) for low, count, claim, right in zip(*columns) if low >= SURE - 1e-9]
    count, claimed, right = (sum(column) for column in zip(*sure)) if sure else (0, 0.0, 0.0)
    return int(count), claimed / max(count, 1), right / max(count, 1)


def _reliability(reliability: Mapping[str, Any]) -> str:
    count, claimed, right = _sure(reliability)
    if not count:
        return f"The teacher is nowhere {SURE:.0%} sure of a token."
    return (
        f"Where the teacher is at least {SURE:.0%} sure of a token ({count:,} times, {_percent(claimed)} on average), "
        f"the data write that token {_percent(right)} of the time."
    )


def _about_reliability(reliability: Mapping[str, Any]) -> Iterator[str]:
    """What a gap between claims and labels is a reason for."""
    count, claimed, right = _sure(reliability)
    if not count or claimed - right <= GAP:
        return
    yield (
        f"Of what this teacher is sure of, {_percent(claimed - right)} is not borne out. Either the demonstrations "
        "slip there or the teacher is wrong: the numbers cannot tell which, and target and kd side with the teacher. "
        "Read the tokens it is least borne out on; if it is the teacher, take a row that reads none (dft, beyond_log)."
    )


def _percent(share: float) -> str:
    """A share as a percentage with one digit; the space does not break."""
    return f"{100 * share:.1f}\N{NO-BREAK SPACE}%"
