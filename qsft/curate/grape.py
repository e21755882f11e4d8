"""GRAPE: of several responses to a prompt the one that the model itself finds most likely (Zhang et al. 2025)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from qsft.curate.context import CurationContext, Sample
    from qsft.curate.exercises import Exercise, Kept
    from qsft.ledger import Record

Candidates = dict[str, str]  # where it is from → response
DEMONSTRATION = "demonstration"


def grape(
    exercises: "Sequence[Exercise]",
    context: "CurationContext",
    *,
    columns: str = "",
    datasets: str = "",
    originals: bool = True,
    normalise: bool = True,
    batch_size: int = 8,
) -> "list[Kept]":
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
        where = (
            "columns or a list column (--columns a,b), or data sets with the same prompts (--datasets a.jsonl,b.jsonl)"
        )
        raise ValueError(f"no prompt has two candidates to choose from. Name {where}.")
    kept = []
    for exercise, scores in score(candidates, context, normalise, batch_size).items():
        names = list(candidates[exercise])
        scored = {name: value for name, value in zip(names, scores, strict=True) if value is not None}
        context.counts["no candidate"] += not scored
        if scored:
            best = max(scored, key=lambda name: scored[name])
            response = None if best == DEMONSTRATION else candidates[exercise][best]
            kept.append(exercise.kept(response, best, score=scored[best], candidates=names, scores=scores))
    return kept


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
    candidates: "Mapping[Exercise, Candidates]", context: "CurationContext", normalise: bool, batch_size: int
) -> "dict[Exercise, list[float | None]]":
    """Each candidate's log-probability under the model; None where it does not fit into the model's context."""
    from qsft.data.prompts import document, response_ids

    def make(missing: "Sequence[Sample]") -> "Iterator[Record]":
        sampler = context.sampler()
        for exercise, _ in missing:
            texts = candidates[exercise].values()
            found = [document(exercise.prompt, response_ids(sampler.tokenizer, text)) for text in texts]
            lengths = [len(one["labels"]) for one in found]
            fits = [context.positions is None or length <= context.positions for length in lengths]
            fitting = [one for one, fit in zip(found, fits) if fit]
            # One prompt's candidates are a batch of their own: neither a resume nor other processes change rounding.
            batches = [fitting[first : first + batch_size] for first in range(0, len(fitting), batch_size)]
            logps = iter([logp for batch in batches for logp in response_logps(sampler.model.eval(), batch)])
            scored = {"logps": [next(logps) if fit else None for fit in fits]}
            own = [length - len(exercise.prompt) for length in lengths]
            yield {"problem": exercise.id, "sample": 0, "tokens": sum(own), **scored, "lengths": own}

    records = context.fill("scores", [exercise for exercise, found in candidates.items() if found], make)
    logps = [logp for (record,) in records.values() for logp in record["logps"]]
    context.counts["scored responses"] += len(logps)
    context.counts["longer than the context"] += logps.count(None)
    return {p: _scores(records[p][0], normalise) if p in records else [] for p in candidates}


def response_logps(model: "PreTrainedModel", documents: Sequence[Mapping[str, list[int]]]) -> list[float]:
    """Σ log p over the label tokens of each document: a response and its end token."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from qsft.losses.head import label_logps
    from qsft.targets.view import IGNORED

    # Padding stands behind the tokens, so no token attends to it and no mask is needed.
    batch = {
        name: pad_sequence([torch.tensor(one[name]) for one in documents], batch_first=True, padding_value=padding)
        for name, padding in (("input_ids", 0), ("labels", IGNORED))
    }
    logps = label_logps(model, **{name: ids.to(model.device) for name, ids in batch.items()})
    return [float(logp) for logp in logps.double().sum(-1)]


def _scores(record: "Record", normalise: bool) -> list[float | None]:
    pairs = zip(record["logps"], record["lengths"], strict=True)
    return [None if logp is None else logp / length if normalise else logp for logp, length in pairs]


def _named(name: str, value: str | Sequence[str] | None) -> Candidates:
    """One text under the name itself, several as name[0], name[1], …; empty ones are no candidates."""
    texts = [value] if isinstance(value, str) else list(value or ())
    names = [name] if len(texts) == 1 else [f"{name}[{at}]" for at in range(len(texts))]
    return {name: text for name, text in zip(names, texts, strict=True) if text}


def _responses(context: "CurationContext", name: str) -> dict[str, list[str]]:
    """The responses of another data set by the prompt they answer."""
    assert context.material.other is not None
    found: dict[str, list[str]] = {}
    for exercise in context.exercises(*context.material.other(name)):
        if exercise.response:
            found.setdefault(exercise.digest, []).append(exercise.response)
    return found


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]
