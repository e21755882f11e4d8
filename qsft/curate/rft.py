"""RFT: the model's own right solutions, one for each way to get there (rejection sampling, Yuan et al. 2023)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qsft.curate.context import CurationContext, Kept
from qsft.curate.reasoning import distinct, most_different, reasoning_path

if TYPE_CHECKING:
    from qsft.curate.exercises import Exercise


def rft(
    exercises: "Sequence[Exercise]",
    context: CurationContext,
    *,
    n: int = 8,
    temperature: float = 0.7,
    top_p: float = 1.0,
    max_new_tokens: int = 2048,
    seed: int = 0,
    keep: int = 4,
    originals: bool = True,
) -> list[Kept]:
    """Adds the model's own right solutions, one per reasoning path.

    n               samples per problem
    temperature     of the samples
    top_p           keep the likeliest tokens of this mass
    max_new_tokens  longest response; one that is cut off is never kept
    seed            of all samples
    keep            at most so many per problem, the most different ones
    originals       whether the demonstrations stay in the data set
    """
    how: dict[str, Any] = {"temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "seed": seed}
    found = context.sample("samples", {exercise: exercise.prompt for exercise in exercises}, n=n, **how)
    right = {exercise: [sample.text for sample in samples if sample.right] for exercise, samples in found.items()}
    context.refuse_empty([text for texts in right.values() for text in texts])
    kept = []
    for exercise in exercises:
        original = exercise.response if originals else None
        kept += [Kept(exercise, None, "demonstration")] if original is not None else []
        kept += [Kept(exercise, text, "sample") for text in select(right[exercise], keep, original, context)]
    return kept


def select(right: Sequence[str], keep: int, original: str | None, context: CurationContext) -> list[str]:
    """Of right solutions, at most `keep` with paths that differ from one another's and from the original's."""
    taken = [reasoning_path(original)] if original is not None else []
    first = distinct([reasoning_path(text) for text in right], taken)
    texts = [right[at] for at in first]
    chosen = most_different([reasoning_path(text) for text in texts], keep, taken)
    context.counts["same path as another"] += len(right) - len(texts)
    context.counts["beyond keep"] += len(texts) - len(chosen)
    return [texts[at] for at in chosen]
