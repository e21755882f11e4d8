"""STaR: the model's own right rationales; where it fails, those for an answer it was told (Zelikman et al. 2022)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qsft.data.curate.template import fill, require_places
from qsft.data.curate.workshop import Kept, Sample, Workshop

if TYPE_CHECKING:
    from qsft.data.curate.problems import Problem

STARTS = ("base", "last")


def star(
    problems: "Sequence[Problem]",
    workshop: Workshop,
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
        raise ValueError(f"start={start!r} is not known: base (the model as it came) or last (the round before's).")
    how = {"n": n, "temperature": temperature, "top_p": top_p, "max_new_tokens": max_new_tokens, "seed": seed}
    model: str | None = None
    for number in range(1, rounds):
        kept = one_round(problems, workshop, number, model, hint, how)
        assert workshop.train is not None
        model = workshop.train(kept, model if start == "last" else None, number)
    return one_round(problems, workshop, rounds, model, hint, how)


def one_round(
    problems: "Sequence[Problem]", workshop: Workshop, number: int, model: str | None, hint: str, how: dict[str, Any]
) -> list[Kept]:
    """The right rationales of one round; what only the hint brought out is saved with the problem as it was."""
    told = [problem for problem in problems if problem.gold is not None]
    first = workshop.sample(f"round{number}", {p: p.prompt for p in told}, model=model, **how)
    failed = [problem for problem in told if not any(sample.right for sample in first[problem])]
    hints = {p: p.asked(fill(hint, vars(p))) for p in failed}
    second = workshop.sample(f"round{number}-hinted", hints, model=model, **how)
    kept = []
    for problem in told:
        alone = [sample.text for sample in first[problem] if sample.right]
        helped = [sample.text for sample in second.get(problem, ()) if is_honest(sample, problem, hint, workshop)]
        kept += [Kept(problem, text, "rationale") for text in alone[:1]]
        kept += [Kept(problem, text, "hinted") for text in helped[:1]]
    workshop.refuse_empty(kept)
    return kept


def is_honest(sample: Sample, problem: "Problem", hint: str, workshop: Workshop) -> bool:
    """Whether a right rationale stands without the hint: one that quotes it or speaks of it does not."""
    if not sample.right:
        return False
    told = fill(hint, {"question": "", "gold": problem.gold}).strip(" \n()")
    quotes = told != str(problem.gold) and told in sample.text
    speaks = "hint" in hint.lower() and "hint" in sample.text.lower() and "hint" not in problem.question.lower()
    workshop.counts["gave the hint away"] += quotes or speaks
    return not (quotes or speaks)
