"""RFT, rejection sampling: add the model's own correct solutions, one per reasoning path."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsft.curate.reasoning_paths import Path, most_different, reasoning_path
from qsft.curate.registry import Need, SamplingSettings, register, setting

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext
    from qsft.curate.exercises import Exercise, Kept


@dataclass(frozen=True, kw_only=True)
class RftSettings(SamplingSettings):
    """Settings of RFT."""

    num_samples: int = setting(8, "responses per problem")
    keep: int = setting(4, "keep at most this many per problem, the most different ones")
    originals: bool = setting(True, "whether the demonstrations stay in the data set")


@register(
    title="Adds the model's own correct solutions, one per reasoning path.",
    reference="Yuan et al. 2023",
    settings=RftSettings,
    needs=[Need.VERIFIER],
)
def rft(exercises: "Sequence[Exercise]", context: "CurationContext", settings: RftSettings) -> "list[Kept]":
    """The demonstrations, and for each exercise its distinct correct samples."""
    prompts = {exercise: exercise.prompt for exercise in exercises}
    correct = context.sample_correct("samples", prompts, settings.sampling())
    context.check_any_correct([text for texts in correct.values() for text in texts])
    kept = []
    for exercise in exercises:
        original = exercise.response if settings.originals else None
        if original is not None:
            kept.append(exercise.kept(None, "demonstration"))
        chosen = choose_distinct(correct[exercise], settings.keep, original, context)
        kept += [exercise.kept(text, "sample") for text in chosen]
    return kept


def choose_distinct(
    solutions: Sequence[str], count: int, original: str | None, context: "CurationContext"
) -> list[str]:
    """At most `count` solutions whose paths differ from one another's and from the original's."""
    taken = [] if original is None else [reasoning_path(original)]
    by_path: dict[Path, str] = {}
    for text in solutions:
        by_path.setdefault(reasoning_path(text), text)
    new = {path: text for path, text in by_path.items() if path not in taken}
    chosen = most_different(list(new), count, taken)
    context.counts["same path as another"] += len(solutions) - len(new)
    context.counts["beyond keep"] += len(new) - len(chosen)
    return [new[path] for path in chosen]
