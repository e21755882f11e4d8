"""SDFT, self-distillation: rewrite each demonstration in the model's own words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsft.curate.registry import Need, SamplingSettings, register, setting
from qsft.curate.templates import check_template

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext
    from qsft.curate.exercises import CuratedRow, Exercise

TEMPLATE = (
    "{question}\n\nHere is a reference answer:\n{response}\n\n"
    "Answer the question in your own words, with the reference's reasoning and its final result. Do not mention the "
    "reference."
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|unable)|i (?:cannot|can't|won't) (?:help|assist|answer|provide|rewrite)|as an ai\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class SelfDistillSettings(SamplingSettings):
    """Settings of self-distillation."""

    num_samples: int = setting(1, "attempts per demonstration; the first correct one is kept")
    template: str = setting(TEMPLATE, "prompt of a rewriting, with {question}, {response} and, optionally, {gold}")

    def __post_init__(self) -> None:
        check_template("template", self.template, ("response",))


@register(
    title="Rewrites each demonstration in the model's own words, and keeps the original where that fails.",
    reference="Yang et al. 2024",
    settings=SelfDistillSettings,
    needs=[Need.VERIFIER],
)
def self_distill(
    exercises: "Sequence[Exercise]", context: "CurationContext", settings: SelfDistillSettings
) -> "list[CuratedRow]":
    """For each demonstration its first correct rewriting, else the demonstration itself."""
    demonstrations = [exercise for exercise in exercises if exercise.response is not None]
    if not demonstrations:
        raise ValueError(
            "the data set has no responses to rewrite: self_distill needs demonstrations. Name their column with "
            "--response_column."
        )
    prompts = {exercise: exercise.encode_template(settings.template) for exercise in demonstrations}
    found = context.sample("rewritten", prompts, settings.sampling())
    rewritings = {}
    for exercise in demonstrations:
        context.counts["refusals"] += sum(is_refusal(record["text"]) for record in found[exercise])
        correct = [record["text"] for record in found[exercise] if record["correct"]]
        rewritings[exercise] = [text for text in correct if not is_refusal(text)]
    context.check_any_correct([texts for texts in rewritings.values() if texts])
    rows = []
    for exercise, texts in rewritings.items():
        if texts:
            rows.append(exercise.with_response(texts[0], "rewritten"))
        else:
            rows.append(exercise.with_demonstration())
    return rows


def is_refusal(text: str) -> bool:
    """Whether a response refuses to answer."""
    return _REFUSAL.search(text) is not None
