"""STaR: replace the demonstrations by the model's correct rationales, with the answer as a hint where it fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsft.curate.registry import Need, SamplingSettings, register, setting
from qsft.curate.templates import check_template, fill_template
from qsft.validation import check_choice, check_range

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext
    from qsft.curate.exercises import CuratedRow, Exercise

INITIAL_MODEL = "base"
PREVIOUS_ROUND = "last"


@dataclass(frozen=True, kw_only=True)
class StarSettings(SamplingSettings):
    """Settings of STaR."""

    num_samples: int = setting(
        1, "attempts per problem, first without and then with the hint; the first correct one is kept"
    )
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy")
    rounds: int = setting(1, "rounds of sampling; the model is trained between rounds")
    start: str = setting(
        INITIAL_MODEL, "model that each round trains: base (the initial model) or last (the model of the round before)"
    )
    hint: str = setting(
        "{question}\n(Hint: the answer is {gold}.)",
        "question with the hint, for a second attempt; it is never in the data set",
    )

    def __post_init__(self) -> None:
        check_template("hint", self.hint, ("question", "gold"))
        check_choice("start", self.start, (INITIAL_MODEL, PREVIOUS_ROUND))
        check_range("rounds", self.rounds, 1)


@register(
    title="Replaces the demonstrations by the model's correct rationales. Where the model fails, it gets a hint.",
    reference="Zelikman et al. 2022",
    settings=StarSettings,
    needs=[Need.VERIFIER, Need.GOLD, Need.TRAINING],
)
def star(exercises: "Sequence[Exercise]", context: "CurationContext", settings: StarSettings) -> "list[CuratedRow]":
    """The correct rationales of the last round."""
    rows = star_round(exercises, context, 1, settings, model=None)
    model = None
    for number in range(2, settings.rounds + 1):
        initial_model = model if settings.start == PREVIOUS_ROUND else None
        model = context.train(rows, initial_model, number - 1)
        rows = star_round(exercises, context, number, settings, model=model)
    return rows


def star_round(
    exercises: "Sequence[Exercise]",
    context: "CurationContext",
    number: int,
    settings: StarSettings,
    model: str | None,
) -> "list[CuratedRow]":
    """The correct rationales of one round; those found with the hint are saved with the original question."""
    sampling = settings.sampling()
    with_gold = [exercise for exercise in exercises if exercise.gold is not None]
    prompts = {exercise: exercise.prompt for exercise in with_gold}
    unaided = context.sample_correct(f"round{number}", prompts, sampling, model=model)
    unsolved = [exercise for exercise in with_gold if not unaided[exercise]]
    hinted_prompts = {exercise: exercise.encode_template(settings.hint) for exercise in unsolved}
    hinted = context.sample_correct(f"round{number}-hinted", hinted_prompts, sampling, model=model)
    rows = []
    for exercise in with_gold:
        if unaided[exercise]:
            rows.append(exercise.with_response(unaided[exercise][0], "rationale"))
            continue
        independent = [text for text in hinted[exercise] if not mentions_hint(text, exercise, settings.hint)]
        context.counts["gave the hint away"] += len(hinted[exercise]) - len(independent)
        if independent:
            rows.append(exercise.with_response(independent[0], "hinted"))
    context.check_any_correct(rows)
    return rows


def mentions_hint(text: str, exercise: "Exercise", hint: str) -> bool:
    """Whether a correct rationale quotes or mentions the hint, so that it makes no sense without it."""
    hint_text = fill_template(hint, {"question": "", "gold": exercise.gold}).strip(" \n()")
    quotes_it = hint_text != str(exercise.gold) and hint_text in text
    hint_is_named = "hint" in hint.lower() and "hint" not in exercise.question.lower()
    return quotes_it or (hint_is_named and "hint" in text.lower())
