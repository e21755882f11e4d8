"""STaR: the model's own right rationales; where it fails, those for an answer it was told (Zelikman et al. 2022)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qsft.curate.context import CurationContext, Kept, Sample
from qsft.curate.exercises import fill, require_places

if TYPE_CHECKING:
    from qsft.curate.exercises import Exercise

STARTS = ("base", "last")


def star(
    exercises: "Sequence[Exercise]",
    context: CurationContext,
    *,
    rounds: int = 1,
    start: str = "base",
    n: int = 1,
    temperature: float = 0.0,
    top_p: float = 1.0,
    max_new_tokens: int = 2048,
    seed: int = 0,
    hint: str = "{question}\n(Hint: the answer is {gold}.)",
) -> list[Kept]:
    """Replaces the demonstrations by the model's right rationales, hinted where it fails.

    rounds          rounds of sampling; the model is trained between two
    start           what each round trains: base (the model as it came) or last (the round before's)
    n               attempts per problem, without and again with the hint; the first right one is kept
    temperature     of the attempts; 0 is greedy
    top_p           keep the likeliest tokens of this mass
    max_new_tokens  longest response; one that is cut off is never kept
    seed            of all samples
    hint            the question of a second attempt; it never reaches the data set
    """
    require_places("hint", hint, ("question", "gold"))
    if start not in STARTS:
        raise ValueError(f"--start {start!r} is not known: base (the model as it came) or last (the round before's).")
    how = {"n": n, "temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "seed": seed}
    model: str | None = None
    for number in range(1, rounds):
        kept = one_round(exercises, context, number, model, hint, how)
        assert context.train is not None
        model = context.train(kept, model if start == "last" else None, number)
    return one_round(exercises, context, rounds, model, hint, how)


def one_round(
    exercises: "Sequence[Exercise]",
    context: CurationContext,
    number: int,
    model: str | None,
    hint: str,
    how: dict[str, Any],
) -> list[Kept]:
    """The right rationales of one round; what only the hint brought out is saved with the question as it was."""
    told = [exercise for exercise in exercises if exercise.gold is not None]
    first = context.sample(f"round{number}", {p: p.prompt for p in told}, model=model, **how)
    failed = [exercise for exercise in told if not any(sample.right for sample in first[exercise])]
    hints = {p: p.asked(hint) for p in failed}
    second = context.sample(f"round{number}-hinted", hints, model=model, **how)
    kept = []
    for exercise in told:
        alone = [sample.text for sample in first[exercise] if sample.right]
        helped = [sample.text for sample in second.get(exercise, ()) if is_honest(sample, exercise, hint, context)]
        kept += [Kept(exercise, text, "rationale") for text in alone[:1]]
        kept += [Kept(exercise, text, "hinted") for text in helped[:1]]
    context.refuse_empty(kept)
    return kept


def is_honest(sample: Sample, exercise: "Exercise", hint: str, context: CurationContext) -> bool:
    """Whether a right rationale stands without the hint: one that quotes it or speaks of it does not."""
    if not sample.right:
        return False
    told = fill(hint, {"question": "", "gold": exercise.gold}).strip(" \n()")
    quotes = told != str(exercise.gold) and told in sample.text
    speaks = "hint" in hint.lower() and "hint" in sample.text.lower() and "hint" not in exercise.question.lower()
    context.counts["gave the hint away"] += quotes or speaks
    return not (quotes or speaks)
