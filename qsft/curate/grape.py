"""GRAPE: of several responses to a prompt, keep the one that the model itself finds most likely.

`likelihood` has two readings. per_token (the default) is the mean log-probability per token. sequence is that of the
whole response, as the paper writes it; it prefers short responses.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsft.curate.registry import DEMONSTRATION, Need, register, setting
from qsft.validation import check_choice, check_range

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from qsft.curate.context import CurationContext, Sample
    from qsft.curate.exercises import CuratedRow, Exercise
    from qsft.ledger import Record

Candidates = dict[str, str]  # where a response comes from → the response

PER_TOKEN = "per_token"
SEQUENCE = "sequence"


@dataclass(frozen=True, kw_only=True)
class GrapeSettings:
    """Settings of GRAPE."""

    columns: str = setting("", "columns with candidates, comma-separated; each contains texts or lists of texts")
    datasets: str = setting("", "further data sets with responses to the same prompts, comma-separated")
    originals: bool = setting(True, "whether the demonstration is a candidate too")
    likelihood: str = setting(
        PER_TOKEN,
        "how candidates are compared: per_token (mean log-probability per token) or sequence (log-probability of the "
        "whole response, as published, which prefers short responses)",
    )
    batch_size: int = setting(8, "candidates of one prompt that are scored at once")

    def __post_init__(self) -> None:
        check_choice("likelihood", self.likelihood, (PER_TOKEN, SEQUENCE))
        check_range("batch_size", self.batch_size, 1)


@register(
    title="Chooses, for each prompt, the candidate response that the model finds most likely.",
    reference="Zhang et al. 2025",
    settings=GrapeSettings,
    needs=[Need.WEIGHTS],
)
def grape(exercises: "Sequence[Exercise]", context: "CurationContext", settings: GrapeSettings) -> "list[CuratedRow]":
    """For each exercise the candidate with the highest score, with all scores as columns."""
    columns = _split_names(settings.columns)
    others = {name: _responses(context, name) for name in _split_names(settings.datasets)}
    candidates = {one: candidates_of(one, columns, others, settings.originals) for one in exercises}
    if all(len(found) < 2 for found in candidates.values()):
        raise ValueError(
            "no prompt has two candidates to choose from. Name columns (--columns a,b, or one of lists) or data sets "
            "with the same prompts (--datasets a.jsonl)."
        )
    rows = []
    for exercise, scores in score_candidates(candidates, context, settings).items():
        names = list(candidates[exercise])
        scored = {name: score for name, score in zip(names, scores, strict=True) if score is not None}
        if not scored:
            context.counts["no candidate"] += 1
            continue
        best = max(scored, key=lambda name: scored[name])
        score_columns = {"score": scored[best], "candidates": names, "scores": scores}
        if best == DEMONSTRATION:
            rows.append(exercise.with_demonstration(**score_columns))
        else:
            rows.append(exercise.with_response(candidates[exercise][best], best, **score_columns))
    return rows


def candidates_of(
    exercise: "Exercise", columns: Sequence[str], others: Mapping[str, Mapping[str, list[str]]], originals: bool
) -> Candidates:
    """The responses to choose from by name: the demonstration, columns, entries of list columns, other data sets."""
    found = {}
    if originals and exercise.response:
        found[DEMONSTRATION] = exercise.response
    for column in columns:
        if column not in exercise.row:
            raise ValueError(f"there is no column {column!r} with candidates, only {', '.join(exercise.row)}.")
        found.update(_name_texts(column, exercise.row[column]))
    for name, responses in others.items():
        found.update(_name_texts(name, responses.get(exercise.prompt_digest, ())))
    return found


def score_candidates(
    candidates: "Mapping[Exercise, Candidates]", context: "CurationContext", settings: GrapeSettings
) -> "dict[Exercise, list[float | None]]":
    """The score of each candidate under the model; None where it does not fit into the model's context."""

    def compute(missing: "Sequence[Sample]") -> "Iterator[Record]":
        sampler = context.greedy_sampler()
        for exercise, _ in missing:
            texts = list(candidates[exercise].values())
            yield _score_exercise(exercise, texts, sampler.model, sampler.tokenizer, context, settings.batch_size)

    records = context.fill("scores", [exercise for exercise, found in candidates.items() if found], compute)
    log_probs = [value for (record,) in records.values() for value in record["logps"]]
    context.counts["scored responses"] += len(log_probs)
    context.counts["longer than the context"] += log_probs.count(None)
    return {one: _scores(records[one][0], settings.likelihood) if one in records else [] for one in candidates}


def _score_exercise(
    exercise: "Exercise",
    texts: Sequence[str],
    model: "PreTrainedModel",
    tokenizer: object,
    context: "CurationContext",
    batch_size: int,
) -> "Record":
    """The log-probability and the length of each candidate; one prompt's candidates are batches of their own.

    Neither a resume nor other processes change the rounding then.
    """
    from qsft.data.prompts import document, response_ids

    documents = [document(exercise.prompt, response_ids(tokenizer, text)) for text in texts]  # type: ignore[arg-type]
    lengths = [len(one["labels"]) - len(exercise.prompt) for one in documents]
    limit = context.context_length
    fitting = [index for index, one in enumerate(documents) if limit is None or len(one["labels"]) <= limit]
    log_probs: list[float | None] = [None] * len(texts)
    for start in range(0, len(fitting), batch_size):
        batch = fitting[start : start + batch_size]
        for index, value in zip(batch, response_logps(model.eval(), [documents[index] for index in batch])):
            log_probs[index] = value
    return {"problem": exercise.id, "sample": 0, "tokens": sum(lengths), "logps": log_probs, "lengths": lengths}


def response_logps(model: "PreTrainedModel", documents: Sequence[Mapping[str, list[int]]]) -> list[float]:
    """Σ log p over the label tokens of each document: a response and its end token."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from qsft.losses.head import label_logps
    from qsft.targets.view import IGNORED

    # Padding stands after the tokens, so no token attends to it and no mask is needed.
    input_ids = pad_sequence([torch.tensor(one["input_ids"]) for one in documents], batch_first=True, padding_value=0)
    labels = pad_sequence([torch.tensor(one["labels"]) for one in documents], batch_first=True, padding_value=IGNORED)
    logps = label_logps(model, input_ids=input_ids.to(model.device), labels=labels.to(model.device))
    sums = [float(logp) for logp in logps.double().sum(-1)]
    for logp in sums:
        if not math.isfinite(logp):
            raise ValueError(
                f"{type(model).__name__} gives a response the log-probability {logp}, so candidates cannot be "
                "compared. Its weights may be damaged, or its dtype too narrow: try float32 or bfloat16."
            )
    return sums


def _scores(record: "Record", likelihood: str) -> list[float | None]:
    scores: list[float | None] = []
    for logp, length in zip(record["logps"], record["lengths"], strict=True):
        if logp is not None and likelihood == PER_TOKEN:
            scores.append(logp / length)
        else:
            scores.append(logp)
    return scores


def _name_texts(name: str, value: str | Sequence[str] | None) -> Candidates:
    """One text under the name itself, several as name[0], name[1], …; empty ones are not candidates."""
    texts = [value] if isinstance(value, str) else list(value or ())
    names = [name] if len(texts) == 1 else [f"{name}[{index}]" for index in range(len(texts))]
    return {name: text for name, text in zip(names, texts, strict=True) if text}


def _responses(context: "CurationContext", name: str) -> dict[str, list[str]]:
    """The responses in another data set by the digest of their prompts."""
    found: dict[str, list[str]] = {}
    for exercise in context.read_dataset(name):
        if exercise.response:
            found.setdefault(exercise.prompt_digest, []).append(exercise.response)
    return found


def _split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
