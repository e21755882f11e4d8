"""RFT, self-distillation and STaR: demonstrations by the model itself, where its own samples verify.

Two solutions with one reasoning path calculate the same; RFT keeps one of them, and of several paths the most different
ones. `how`: the settings of all methods that draw (catalogue.DRAWING).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext
    from qsft.curate.exercises import Exercise, Kept
    from qsft.ledger import Record

TEMPLATE = (
    "{question}\n\nHere is a reference answer:\n{response}\n\n"
    "Answer the question in your own words, with the reference's reasoning and its final result. Do not mention the "
    "reference."
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) (?:sorry|unable)|i (?:cannot|can't|won't) (?:help|assist|answer|provide|rewrite)|as an ai\b)",
    re.IGNORECASE,
)

Path = tuple[str, ...]  # of reasoning: numbers, operators and variables in order, whatever words stand between

_WRITINGS = (
    (re.compile(r"\\(?:left|right|displaystyle|text|mathrm|quad|qquad|boxed|[,;:! ])|[$~]"), " "),
    (re.compile(r"\\[dt]?frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\(?:times|cdot|ast)|[×·∗]"), "*"),
    (re.compile(r"\\div|÷"), "/"),
    (re.compile(r"[−–]"), "-"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
)
# A hyphen between words is no minus, and a lone letter is a variable only where it stands in a formula.
_TOKEN = re.compile(
    r"\d+(?:\.\d+)?"
    r"|[-+*/^<>](?=\s*(?:[\d(\\.]|[a-zA-Z](?![a-zA-Z])))"
    r"|(?<![a-zA-Z\\])[a-zA-Z](?=\s*[-+*/^<>=)])(?![a-zA-Z])"
    r"|(?<=[-+*/^<>=(\d])[a-zA-Z](?![a-zA-Z])"
    r"|(?<=[-+*/^<>=(\d]\s)[a-zA-Z](?=\s*(?:[-+*/^<>=),.]|$))"
)


def rft(
    exercises: "Sequence[Exercise]",
    context: "CurationContext",
    *,
    num_samples: int = 8,
    temperature: float = 0.7,
    keep: int = 4,
    originals: bool = True,
    **how: Any,
) -> "list[Kept]":
    """Adds the model's own right solutions, one per reasoning path.

    Rejection sampling: Yuan et al. 2023.

    num_samples  samples per problem
    temperature  sampling temperature
    keep         at most this many per problem, the most different ones
    originals    whether the demonstrations stay in the data set
    """
    found = context.sample(
        "samples", {p: p.prompt for p in exercises}, num_samples=num_samples, temperature=temperature, **how
    )
    right = {p: right_texts(found[p]) for p in exercises}
    context.refuse_empty([text for texts in right.values() for text in texts])
    kept = []
    for exercise in exercises:
        original = exercise.response if originals else None
        kept += [exercise.kept(None, "demonstration")] if original is not None else []
        kept += [exercise.kept(text, "sample") for text in select(right[exercise], keep, original, context)]
    return kept


def select(right: Sequence[str], keep: int, original: str | None, context: "CurationContext") -> list[str]:
    """Of right solutions, at most `keep` with paths that differ from one another's and from the original's."""
    taken = [] if original is None else [reasoning_path(original)]
    by_path: dict[Path, str] = {}
    for text in right:
        by_path.setdefault(reasoning_path(text), text)
    texts = {path: text for path, text in by_path.items() if path not in taken}
    chosen = most_different(list(texts), keep, taken)
    context.counts["same path as another"] += len(right) - len(texts)
    context.counts["beyond keep"] += len(texts) - len(chosen)
    return [texts[path] for path in chosen]


def self_distill(
    exercises: "Sequence[Exercise]",
    context: "CurationContext",
    *,
    num_samples: int = 1,
    temperature: float = 0.7,
    template: str = TEMPLATE,
    **how: Any,
) -> "list[Kept]":
    """Rewrites each demonstration in the model's own words; keeps the original where that fails.

    SDFT: Yang et al. 2024.

    num_samples  attempts per demonstration; the first that verifies is kept
    temperature  sampling temperature
    template     what the model is asked: {question}, {response} and, if you like, {gold}
    """
    require_places("template", template, ("response",))
    shown = [exercise for exercise in exercises if exercise.response is not None]
    if not shown:
        raise ValueError("the data set has no responses to rewrite: self_distill needs demonstrations.")
    asked = {p: tuple(p.ask(fill(template, vars(p)))) for p in shown}
    found = context.sample("rewritten", asked, num_samples=num_samples, temperature=temperature, **how)
    context.counts["refusals"] += sum(bool(_REFUSAL.search(one["text"])) for p in shown for one in found[p])
    own = {p: [text for text in right_texts(found[p]) if not _REFUSAL.search(text)] for p in shown}
    context.refuse_empty([texts for texts in own.values() if texts])
    return [p.kept(own[p][0], "rewritten") if own[p] else p.kept(None, "demonstration") for p in shown]


def star(
    exercises: "Sequence[Exercise]",
    context: "CurationContext",
    *,
    rounds: int = 1,
    start: str = "base",
    num_samples: int = 1,
    temperature: float = 0.0,
    hint: str = "{question}\n(Hint: the answer is {gold}.)",
    **how: Any,
) -> "list[Kept]":
    """Replaces the demonstrations by the model's right rationales, hinted where it fails.

    Zelikman et al. 2022.

    rounds       rounds of sampling; the model is trained between two
    start        what each round trains: base (the model as it came) or last (the round before's)
    num_samples  attempts per problem, without and again with the hint; the first right one is kept
    temperature  sampling temperature; 0 is greedy
    hint         the question of a second attempt; it never reaches the data set
    """
    require_places("hint", hint, ("question", "gold"))
    if start not in ("base", "last"):
        raise ValueError(f"--start {start!r} is not known: base (the model as it came) or last (the round before's).")
    how |= {"num_samples": num_samples, "temperature": temperature}
    kept, model = star_round(exercises, context, 1, hint, {**how, "model": None}), None
    for number in range(2, rounds + 1):
        model = context.train(kept, model if start == "last" else None, number - 1)
        kept = star_round(exercises, context, number, hint, {**how, "model": model})
    return kept


def star_round(
    exercises: "Sequence[Exercise]", context: "CurationContext", number: int, hint: str, how: Mapping[str, Any]
) -> "list[Kept]":
    """The right rationales of one round; what only the hint brought out is saved with the question as it was."""
    told = [exercise for exercise in exercises if exercise.gold is not None]
    first = context.sample(f"round{number}", {p: p.prompt for p in told}, **how)
    alone = {p: right_texts(first[p]) for p in told}
    hinted = {p: tuple(p.ask(fill(hint, vars(p)))) for p in told if not alone[p]}
    second = context.sample(f"round{number}-hinted", hinted, **how)
    kept = []
    for exercise in told:
        helped = [one for one in right_texts(second.get(exercise, ())) if is_honest(one, exercise, hint, context)]
        kept += [exercise.kept(text, "rationale") for text in alone[exercise][:1]]
        kept += [exercise.kept(text, "hinted") for text in helped[:1]]
    context.refuse_empty(kept)
    return kept


def is_honest(text: str, exercise: "Exercise", hint: str, context: "CurationContext") -> bool:
    """Whether a right rationale stands without the hint: one that quotes it or speaks of it does not."""
    told = fill(hint, {"question": "", "gold": exercise.gold}).strip(" \n()")
    quotes = told != str(exercise.gold) and told in text
    speaks = "hint" in hint.lower() and "hint" in text.lower() and "hint" not in exercise.question.lower()
    context.counts["gave the hint away"] += quotes or speaks
    return not (quotes or speaks)


def right_texts(records: "Iterable[Record]") -> list[str]:
    """The texts of the samples that came to their own end and verified."""
    return [one["text"] for one in records if one["right"]]


def fill(template: str, values: Mapping[str, object]) -> str:
    """The template with its {places} filled, in one pass; braces of LaTeX are left alone."""
    return re.sub(r"\{(\w+)\}", lambda place: str(values.get(place[1], place[0])), template)


def require_places(name: str, template: str, places: Iterable[str]) -> None:
    for place in places:
        if f"{{{place}}}" not in template:
            raise ValueError(f"--{name} {template!r} has no {{{place}}}, so the model would not be told the {place}.")


def reasoning_path(text: str) -> Path:
    """The path of a solution; writings of one number or operator are one."""
    for writing, plain in _WRITINGS:
        text = writing.sub(plain, text)
    tokens = _TOKEN.findall(text)
    return tuple(str(Fraction(token)) if token[0].isdigit() else token for token in tokens)  # 3.50 is 3.5


def distance(a: Path, b: Path) -> float:
    """How different two paths are, 0 to 1: the share of neighbouring pairs that only one of them has (Jaccard)."""
    pairs = [set(zip(("", *path), (*path, ""))) for path in (a, b)]
    return 1 - len(pairs[0] & pairs[1]) / len(pairs[0] | pairs[1])


def most_different(paths: Sequence[Path], count: int, taken: Sequence[Path] = ()) -> list[Path]:
    """`count` of different paths, each next one the farthest from all chosen and `taken` before; ties to the first."""
    left, chosen = list(paths), list[Path]()
    while left and len(chosen) < count:
        best = max(left, key=lambda one: min((distance(one, other) for other in (*taken, *chosen)), default=0.0))
        left.remove(best)
        chosen.append(best)
    return [path for path in paths if path in chosen]
