"""Self-distillation: the demonstration in the model's own words, where they still verify (SDFT, Yang et al. 2024)."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qsft.curate.context import CurationContext, Kept, Sample
from qsft.curate.exercises import require_places

if TYPE_CHECKING:
    from qsft.curate.exercises import Exercise

TEMPLATE = (
    "{question}\n\nHere is a reference answer:\n{response}\n\n"
    "Answer the question in your own words, with the reference's reasoning and its final result. Do not mention the "
    "reference."
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|unable)|i (?:cannot|can't|won't) (?:help|assist|answer|provide|rewrite)|as an ai\b)",
    re.IGNORECASE,
)


def self_distill(
    exercises: "Sequence[Exercise]",
    context: CurationContext,
    *,
    n: int = 1,
    temperature: float = 0.7,
    top_p: float = 1.0,
    max_new_tokens: int = 2048,
    seed: int = 0,
    template: str = TEMPLATE,
) -> list[Kept]:
    """Rewrites each demonstration in the model's own words; keeps the original where that fails.

    n               attempts per demonstration; the first that verifies is kept
    temperature     of the attempts
    top_p           keep the likeliest tokens of this mass
    max_new_tokens  longest response; one that is cut off is never kept
    seed            of all samples
    template        what the model is asked: {question}, {response} and, if you like, {gold}
    """
    require_places("template", template, ("response",))
    shown = [exercise for exercise in exercises if exercise.response is not None]
    if not shown:
        raise ValueError("the data set has no responses to rewrite: self_distill needs demonstrations.")
    how: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "seed": seed}
    asked = {p: p.asked(template) for p in shown}
    found = context.sample("rewritten", asked, n=n, **how)
    own = {p: [sample.text for sample in found[p] if is_answer(sample, context)] for p in shown}
    context.refuse_empty([texts for texts in own.values() if texts])
    return [Kept(p, own[p][0], "rewritten") if own[p] else Kept(p, None, "demonstration") for p in shown]


def is_answer(sample: Sample, context: CurationContext) -> bool:
    """Whether a rewriting is right and no refusal."""
    refused = bool(_REFUSAL.search(sample.text))
    context.counts["refusals"] += refused
    return sample.right and not refused
