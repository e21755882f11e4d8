"""RFT, rejection sampling: add the model's own correct solutions, one per reasoning path."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsft.curate.reasoning_paths import Path, most_different, reasoning_path
from qsft.curate.registry import Need, SamplingSettings, register, setting
from qsft.validation import check_range

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext
    from qsft.curate.exercises import CuratedRow, Exercise


@dataclass(frozen=True, kw_only=True)
class RftSettings(SamplingSettings):
    """Settings of RFT."""

    num_samples: int = setting(8, "responses per problem")
    keep: int = setting(4, "maximum number of responses per problem; the most different ones are kept")
    originals: bool = setting(True, "whether the demonstrations stay in the data set")

    def __post_init__(self) -> None:
        check_range("keep", self.keep, 1)


@register(
    title="Adds the model's own correct solutions, one per reasoning path.",
    reference="Yuan et al. 2023",
    settings=RftSettings,
    needs=[Need.VERIFIER],
)
def rft(exercises: "Sequence[Exercise]", context: "CurationContext", settings: RftSettings) -> "list[CuratedRow]":
    """The demonstrations, and for each exercise its distinct correct samples."""
    prompts = {exercise: exercise.prompt for exercise in exercises}
    correct = context.sample_correct("samples", prompts, settings.sampling())
    context.check_any_correct([text for texts in correct.values() for text in texts])
    rows = []
    for exercise in exercises:
        original = exercise.response if settings.originals else None
        if original is not None:
            rows.append(exercise.with_demonstration())
        chosen = choose_distinct(correct[exercise], settings.keep, original, context)
        rows += [exercise.with_response(text, "sample") for text in chosen]
    return rows


def choose_distinct(
    solutions: Sequence[str], count: int, original: str | None, context: "CurationContext"
) -> list[str]:
    """At most `count` solutions whose paths differ from one another's and from the original's."""
    taken = [] if original is None else [reasoning_path(original)]
    by_path: dict[Path, str] = {}
    for text in solutions:
        by_path.setdefault(reasoning_path(text), text)
    distinct = {path: text for path, text in by_path.items() if path not in taken}
    chosen = most_different(list(distinct), count, taken)
    context.counts["same path as another"] += len(solutions) - len(distinct)
    context.counts["beyond keep"] += len(distinct) - len(chosen)
    return [distinct[path] for path in chosen]
