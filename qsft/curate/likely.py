"""By what the model finds likely: GRAPE chooses among responses, `critical` finds the tokens that decide (for `cft`).

GRAPE (Zhang et al. 2025): of several responses to a prompt the one that the model itself finds most likely.
CFT: a token is critical iff none of the model's other likely tokens in its place, followed greedily, still ends right.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from qsft.curate.context import CurationContext, Sample
    from qsft.curate.exercises import Exercise, Kept
    from qsft.ledger import Record

Candidates = dict[str, str]  # where it is from → response
GREEDY, DEMONSTRATION = PLACES = ("greedy", "demonstration")


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
        where = "columns (--columns a,b, or one of lists) or data sets with the same prompts (--datasets a.jsonl)"
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
    found: dict[str, list[str]] = {}
    for exercise in context.read(name):
        if exercise.response:
            found.setdefault(exercise.digest, []).append(exercise.response)
    return found


def _names(words: str) -> list[str]:
    return [word.strip() for word in words.split(",") if word.strip()]


def critical(
    exercises: "Sequence[Exercise]",
    context: "CurationContext",
    *,
    of: str = GREEDY,
    alternatives: int = 3,
    max_new_tokens: int = 1024,
    batch_size: int = 64,
) -> "list[Kept]":
    """Marks the critical tokens of right responses, in the column that `cft` reads.

    of              whose tokens: greedy (the model's own response) or demonstration
    alternatives    other likely tokens tried in each place
    max_new_tokens  longest response; one that is cut off is not right
    batch_size      branches decoded at once
    """
    if of not in PLACES or alternatives < 1 or batch_size < 1:
        given = f"--of {of}, --alternatives {alternatives}, --batch_size {batch_size}"
        raise ValueError(f"{given}: `of` is greedy or demonstration, the others are 1 or more.")

    def make(missing: "Sequence[Sample]") -> "Iterator[Record]":
        sampler = context.sampler(num_samples=1, temperature=0.0, max_new_tokens=max_new_tokens, stop=())
        sampler.batch_size = batch_size
        search = Search(context, sampler, alternatives)
        for exercise, _ in missing:
            yield {"problem": exercise.id, "sample": 0, **search(exercise, of)}

    found = context.fill("critical", context.answerable({p: p.prompt for p in exercises}), make)
    records = {exercise: record for exercise, (record,) in found.items()}
    context.tally(list(records.values()))
    context.counts["label tokens"] += sum(len(record["critical"]) for record in records.values())
    context.counts["critical tokens"] += sum(sum(record["critical"]) for record in records.values())
    kept = [marked(exercise, record) for exercise, record in records.items() if record["right"]]
    context.refuse_empty(kept)
    return kept


def marked(exercise: "Exercise", record: "Record") -> "Kept":
    from qsft.curate.exercises import Kept
    from qsft.data.prompts import document

    mask = [0] * len(exercise.prompt) + record["critical"]
    return Kept(exercise, {**document(exercise.prompt, record["response"]), "critical": mask, "curated": "critical"})


@dataclass
class Search:
    """Finds the critical tokens of one exercise's response after another's, with a greedy sampler."""

    context: "CurationContext"
    sampler: Any
    alternatives: int
    tokens: int = 0  # generated for the exercise at hand

    def __call__(self, exercise: "Exercise", of: str) -> "Record":
        """The response's ids, which of them are critical, whether it is right, and what finding out cost."""
        from qsft.data.prompts import response_ids

        self.tokens = 0
        shown = response_ids(self.sampler.tokenizer, exercise.response or "")
        response = self.grow(exercise, [[]])[0] if of == GREEDY else shown
        right = self.right(exercise, [response])[0]
        found = self.search(exercise, response) if right else []
        return {"response": response, "critical": found, "right": right, "tokens": self.tokens}

    def search(self, exercise: "Exercise", response: Sequence[int]) -> list[int]:
        others = self.others(exercise, response)
        still = list(range(len(response)))  # places that no other token has saved so far
        # The likeliest alternative goes first everywhere: a place it saves costs no second branch.
        for rank in range(self.alternatives):
            tried = [at for at in still if rank < len(others[at])]
            grown = self.grow(exercise, [[*response[:at], others[at][rank]] for at in tried])
            saved = {at for at, right in zip(tried, self.right(exercise, grown), strict=True) if right}
            still = [at for at in still if at not in saved]
        return [int(at in still) for at in range(len(response))]

    def others(self, exercise: "Exercise", response: Sequence[int]) -> list[list[int]]:
        """For each place of a response the likeliest tokens, without the one that stands there."""
        import torch

        model = self.sampler.model.eval()
        with torch.no_grad():
            logits = model(torch.tensor([[*exercise.prompt, *response]], device=model.device)).logits[0]
        likely = logits[len(exercise.prompt) - 1 : -1].topk(min(self.alternatives + 1, logits.shape[-1])).indices
        found = [[token for token in row if token != own] for row, own in zip(likely.tolist(), response, strict=True)]
        return [tokens[: self.alternatives] for tokens in found]

    def grow(self, exercise: "Exercise", starts: Sequence[list[int]]) -> list[list[int]]:
        """The responses that begin so, continued greedily to their end, or as far as there is room."""
        from qsft.inference.sampling import Request

        longest = self.sampler.sampling.max_new_tokens
        if self.context.positions is not None:
            longest = min(longest, self.context.positions - len(exercise.prompt))
        going = [(at, ids) for at, ids in enumerate(starts) if len(ids) < longest and not self.ended(ids)]
        requests = [Request(exercise.id, at, (*exercise.prompt, *ids), longest - len(ids)) for at, ids in going]
        drawn = {one.sample: one.ids for one in self.sampler.sample(requests)}
        self.tokens += sum(map(len, drawn.values()))
        return [[*ids, *drawn.get(at, ())] for at, ids in enumerate(starts)]

    def ended(self, response: Sequence[int]) -> bool:
        return bool(response) and response[-1] in self.sampler.stops.ids

    def right(self, exercise: "Exercise", responses: Sequence[Sequence[int]]) -> list[bool]:
        decode, verdict = self.sampler.tokenizer.decode, self.context.verdict
        texts = [str(decode(list(ids), skip_special_tokens=True)) for ids in responses]
        verdicts = [verdict(text, exercise, ended=self.ended(ids)) for ids, text in zip(responses, texts)]
        return [exercise.decide(one, text) for one, text in zip(verdicts, texts)]
