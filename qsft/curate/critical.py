"""Counterfactually critical tokens, for `cft`: those without which the right answer is out of reach (CFT).

A token is critical iff none of the model's other likely tokens in its place, followed greedily, still ends right.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext, Sample
    from qsft.curate.exercises import Exercise, Kept
    from qsft.ledger import Record

GREEDY, DEMONSTRATION = PLACES = ("greedy", "demonstration")


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
        raise ValueError(
            f"--of {of}, --alternatives {alternatives}, --batch_size {batch_size}: `of` is greedy or demonstration, "
            "the others are 1 or more."
        )

    def make(missing: "Sequence[Sample]") -> "Iterator[Record]":
        sampler = context.sampler(n=1, temperature=0.0, max_new_tokens=max_new_tokens, stop=())
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
    """The document of a right response, with its critical tokens."""
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
        """1 for each critical token of a right response, else 0."""
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
        from qsft.evals.request import Request

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
        """Which responses came to an end and verify."""
        decode, verdict = self.sampler.tokenizer.decode, self.context.verdict
        texts = [str(decode(list(ids), skip_special_tokens=True)) for ids in responses]
        verdicts = [verdict(text, exercise, ended=self.ended(ids)) for ids, text in zip(responses, texts)]
        return [exercise.decide(one, text) for one, text in zip(verdicts, texts)]
