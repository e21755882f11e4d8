"""RFT: the model's own right solutions, one for each way to get there (rejection sampling, Yuan et al. 2023)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qsft.data.curate.path import distinct, most_different, reasoning_path
from qsft.data.curate.workshop import Kept, Workshop

if TYPE_CHECKING:
    from qsft.data.curate.problems import Problem


def rft(
    problems: "Sequence[Problem]",
    workshop: Workshop,
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
    found = workshop.sample("samples", {problem: problem.prompt for problem in problems}, n=n, **how)
    right = {problem: [sample.text for sample in samples if sample.right] for problem, samples in found.items()}
    workshop.refuse_empty([text for texts in right.values() for text in texts])
    kept = []
    for problem in problems:
        original = problem.response if originals else None
        kept += [Kept(problem, None, "demonstration")] if original is not None else []
        kept += [Kept(problem, text, "sample") for text in select(right[problem], keep, original, workshop)]
    return kept


def select(right: Sequence[str], keep: int, original: str | None, workshop: Workshop) -> list[str]:
    """Of right solutions, at most `keep` with paths that differ from one another's and from the original's."""
    taken = [reasoning_path(original)] if original is not None else []
    first = distinct([reasoning_path(text) for text in right], taken)
    texts = [right[at] for at in first]
    chosen = most_different([reasoning_path(text) for text in texts], keep, taken)
    workshop.counts["same path as another"] += len(right) - len(texts)
    workshop.counts["beyond keep"] += len(texts) - len(chosen)
    return [texts[at] for at in chosen]
