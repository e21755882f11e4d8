"""STaR: replace the demonstrations by the model's correct rationales, with the answer as a hint where it fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsft.curate.registry import Need, SamplingSettings, register, setting
from qsft.curate.templates import check_places, fill_template
from qsft.validation import check_choice, check_range

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext
    from qsft.curate.exercises import Exercise, Kept

BASE = "base"
LAST = "last"


@dataclass(frozen=True, kw_only=True)
class StarSettings(SamplingSettings):
    """Settings of STaR."""

    num_samples: int = setting(
        1, "attempts per problem, without and again with the hint; the first correct one is kept"
    )
    temperature: float = setting(0.0, "sampling temperature; 0 is greedy")
    rounds: int = setting(1, "rounds of sampling; the model is trained between two")
    start: str = setting(
        BASE, "what each round trains: base (the initial model) or last (the model of the round before)"
    )
    hint: str = setting(
        "{question}\n(Hint: the answer is {gold}.)", "the question of a second attempt; it is never in the data set"
    )

    def __post_init__(self) -> None:
        check_places("hint", self.hint, ("question", "gold"))
        check_choice("start", self.start, (BASE, LAST))
        check_range("rounds", self.rounds, 1)


@register(
    title="Replaces the demonstrations by the model's correct rationales, with a hint where it fails.",
    reference="Zelikman et al. 2022",
    settings=StarSettings,
    needs=[Need.VERIFIER, Need.GOLD, Need.TRAINING],
)
def star(exercises: "Sequence[Exercise]", context: "CurationContext", settings: StarSettings) -> "list[Kept]":
    """The correct rationales of the last round."""
    kept = star_round(exercises, context, 1, settings, model=None)
    model = None
    for number in range(2, settings.rounds + 1):
        model = context.train(kept, model if settings.start == LAST else None, number - 1)
        kept = star_round(exercises, context, number, settings, model=model)
    return kept


def star_round(
    exercises: "Sequence[Exercise]",
    context: "CurationContext",
    number: int,
    settings: StarSettings,
    model: str | None,
) -> "list[Kept]":
    """The correct rationales of one round; those found with the hint are saved with the original question."""
    sampling = settings.sampling()
    with_gold = [exercise for exercise in exercises if exercise.gold is not None]
    prompts = {exercise: exercise.prompt for exercise in with_gold}
    alone = context.sample_correct(f"round{number}", prompts, sampling, model=model)
    hinted_prompts = {
        exercise: tuple(exercise.ask(fill_template(settings.hint, vars(exercise))))
        for exercise in with_gold
        if not alone[exercise]
    }
    hinted = context.sample_correct(f"round{number}-hinted", hinted_prompts, sampling, model=model)
    kept = []
    for exercise in with_gold:
        if alone[exercise]:
            kept.append(exercise.kept(alone[exercise][0], "rationale"))
            continue
        independent = [text for text in hinted[exercise] if not mentions_hint(text, exercise, settings.hint, context)]
        if independent:
            kept.append(exercise.kept(independent[0], "hinted"))
    context.check_any_correct(kept)
    return kept


def mentions_hint(text: str, exercise: "Exercise", hint: str, context: "CurationContext") -> bool:
    """Whether a correct rationale quotes the hint or speaks of it, so that it cannot stand without it."""
    shown = fill_template(hint, {"question": "", "gold": exercise.gold}).strip(" \n()")
    quotes = shown != str(exercise.gold) and shown in text
    speaks = "hint" in hint.lower() and "hint" in text.lower() and "hint" not in exercise.question.lower()
    context.counts["gave the hint away"] += quotes or speaks
    return quotes or speaks
