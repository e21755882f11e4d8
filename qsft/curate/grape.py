"""GRAPE: of several responses to a prompt the one that the model itself finds most likely (Zhang et al. 2025)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qsft.curate.context import CurationContext, Kept
from qsft.ledger import Key, Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from qsft.curate.exercises import Exercise

Candidates = dict[str, str]  # where it is from → response
DEMONSTRATION = "demonstration"


def grape(
    exercises: "Sequence[Exercise]",
    context: CurationContext,
    *,
    columns: str = "",
    datasets: str = "",
    originals: bool = True,
    normalise: bool = True,
    batch_size: int = 8,
) -> list[Kept]:
    """Chooses, for each prompt, the candidate response that the model finds most likely.

    columns     columns with candidates, comma-separated: text, or lists of texts
    datasets    further data sets with responses to the same prompts, comma-separated
    originals   whether the demonstration is a candidate too
    normalise   score by the mean log-probability per token; false: by the sequence's, as published (favours short ones)
    batch_size  candidates of one prompt that are scored at once
    """
    others = {name: _responses(context, name) for name in _names(datasets)}
    candidates = {p: candidates_of(p, _names(columns), others, originals) for p in exercises}
    if all(len(found) < 2 for found in candidates.values()):
        raise ValueError(
            "no prompt has two candidates to choose from. Name columns that hold candidates (--columns a,b, or one "
            "list column) or data sets with responses to the same prompts (--datasets a.jsonl,b.jsonl)."
        )
    scores = score(candidates, context, normalise, batch_size)
    return [
        kept for exercise in exercises if (kept := choose(exercise, candidates[exercise], scores[exercise], context))
    ]


def choose(
    exercise: "Exercise", candidates: Candidates, scores: Sequence[float | None], context: CurationContext
) -> Kept | None:
    """The likeliest candidate, with all scores; None where no candidate could be scored."""
    scored = {name: value for name, value in zip(candidates, scores) if value is not None}
    if not scored:
        context.counts["no candidate"] += 1
        return None
    best = max(scored, key=lambda name: scored[name])
    columns = {"score": scored[best], "candidates": list(candidates), "scores": list(scores)}
    return Kept(exercise, None if best == DEMONSTRATION else candidates[best], best, columns)


def candidates_of(
    exercise: "Exercise", columns: Sequence[str], others: Mapping[str, Mapping[str, list[str]]], originals: bool
) -> Candidates:
    """The responses to choose from by name: the demonstration, columns, entries of list columns, other data sets."""
    found = {DEMONSTRATION: exercise.response} if originals and exercise.response else {}
    for column in columns:
        if column not in exercise.row:
            raise ValueError(f"there is no column {column!r} with candidates, only {', '.join(exercise.row)}.")
        found |= _named(column, exercise.row[column])
    for name, responses in others.items():
        found |= _named(name, responses.get(exercise.digest, ()))
    return found


def score(
    candidates: "Mapping[Exercise, Candidates]", context: CurationContext, normalise: bool, batch_size: int
) -> "dict[Exercise, list[float | None]]":
    """Each candidate's log-probability under the model; None where it does not fit into the model's context."""
    exercises = {exercise.id: exercise for exercise, found in candidates.items() if found}

    def make(missing: list[Key]) -> Iterator[Record]:
        model, tokenizer = context.inside()
        for name, _ in missing:
            exercise = exercises[name]
            logps, lengths = [], []
            texts = list(candidates[exercise].values())
            # One prompt's candidates are a batch of their own: neither a resume nor other processes change rounding.
            for first in range(0, len(texts), batch_size):
                found = response_logps(model, tokenizer, exercise.prompt, texts[first : first + batch_size], context)
                logps += [logp for logp, _ in found]
                lengths += [length for _, length in found]
            yield {"problem": name, "sample": 0, "tokens": sum(lengths), "logps": logps, "lengths": lengths}

    records = context.fill("scores", [(name, 0) for name in exercises], make)
    context.counts["scored responses"] += sum(len(record["logps"]) for record in records.values())
    context.counts["longer than the context"] += sum(record["logps"].count(None) for record in records.values())
    return {p: _scores(records.get((p.id, 0)), normalise) for p in candidates}


def response_logps(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompt: Sequence[int],
    responses: Sequence[str],
    context: CurationContext,
) -> list[tuple[float | None, int]]:
    """Σ log p over the tokens of each response and its end token, and their number; None where there is no room."""
    import torch

    from qsft.curate.forms import document, response_ids
    from qsft.losses.head import label_logps
    from qsft.targets.view import IGNORED

    found = [document(prompt, response_ids(tokenizer, text)) for text in responses]
    fits = [context.context is None or len(doc["labels"]) <= context.context for doc in found]
    width = max((len(doc["labels"]) for doc, fit in zip(found, fits) if fit), default=0)

    def padded(name: str, value: int) -> Any:
        rows = [doc[name] + [value] * (width - len(doc[name])) for doc, fit in zip(found, fits) if fit]
        return torch.tensor(rows, device=model.device)

    sums: Iterator[float] = iter(())
    if width:
        # Padding stands behind the tokens, so no token attends to it and no mask is needed.
        logps = label_logps(model, input_ids=padded("input_ids", 0), labels=padded("labels", IGNORED))
        sums = iter(logps.double().sum(-1).tolist())
    return [(next(sums) if fit else None, len(doc["labels"]) - len(prompt)) for doc, fit in zip(found, fits)]


def _scores(record: Record | None, normalise: bool) -> list[float | None]:
    if record is None:
        return []
    pairs = zip(record["logps"], record["lengths"])
    return [None if logp is None else logp / length if normalise else logp for logp, length in pairs]


def _named(name: str, value: str | Sequence[str] | None) -> Candidates:
    """One text under the name itself, several as name[0], name[1], …; empty ones are no candidates."""
    texts = [value] if isinstance(value, str) else list(value or ())
    names = [name] if len(texts) == 1 else [f"{name}[{at}]" for at in range(len(texts))]
    return {name: text for name, text in zip(names, texts) if text}


def _responses(context: CurationContext, name: str) -> dict[str, list[str]]:
    """The responses of another data set by the prompt they answer."""
    assert context.read is not None
    found: dict[str, list[str]] = {}
    for exercise in context.read(name):
        if exercise.response:
            found.setdefault(exercise.digest, []).append(exercise.response)
    return found


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]
