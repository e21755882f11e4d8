"""Critical tokens for CFT: mark the tokens of a correct response that decide whether it is correct.

A token is critical if none of the model's other likely tokens in its place, continued greedily, still leads to a
correct response.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qsft.curate.registry import DEMONSTRATION, ORIGIN, Need, register, setting
from qsft.validation import check_choice, check_range

if TYPE_CHECKING:
    from qsft.curate.context import CurationContext, Sample
    from qsft.curate.exercises import CuratedRow, Exercise
    from qsft.ledger import Record

GREEDY = "greedy"


@dataclass(frozen=True, kw_only=True)
class CriticalSettings:
    """Settings of the search for critical tokens."""

    of: str = setting(GREEDY, "response whose tokens are marked: greedy (the model's own) or demonstration")
    alternatives: int = setting(3, "number of other likely tokens that are tried at each position")
    max_new_tokens: int = setting(1024, "maximum length of a response; a response that is cut off is not correct")
    batch_size: int = setting(64, "branches decoded at once")

    def __post_init__(self) -> None:
        check_choice("of", self.of, (GREEDY, DEMONSTRATION))
        check_range("alternatives", self.alternatives, 1)
        check_range("batch_size", self.batch_size, 1)


@register(
    title="Marks the critical tokens of correct responses in the column that the target cft reads.",
    reference="Critical Token Fine-Tuning, 2025",
    settings=CriticalSettings,
    needs=[Need.VERIFIER, Need.WEIGHTS],
    target="cft",
)
def critical(
    exercises: "Sequence[Exercise]", context: "CurationContext", settings: CriticalSettings
) -> "list[CuratedRow]":
    """The correct responses as token ids, with a column `critical` of 0 and 1."""

    def compute(missing: "Sequence[Sample]") -> "Iterator[Record]":
        sampler = context.greedy_sampler(settings.max_new_tokens)
        sampler.batch_size = settings.batch_size
        search = CriticalTokenSearch(context, sampler, settings.alternatives)
        for exercise, _ in missing:
            yield {"problem": exercise.id, "sample": 0, **search.run(exercise, settings.of)}

    prompts = context.answerable({exercise: exercise.prompt for exercise in exercises})
    records = {exercise: record for exercise, (record,) in context.fill("critical", prompts, compute).items()}
    context.count_responses(list(records.values()))
    for record in records.values():
        context.counts["label tokens"] += len(record["critical"])
        context.counts["critical tokens"] += sum(record["critical"])
    rows = [_marked_row(exercise, record) for exercise, record in records.items() if record["correct"]]
    context.check_any_correct(rows)
    return rows


def _marked_row(exercise: "Exercise", record: "Record") -> "CuratedRow":
    from qsft.curate.exercises import CuratedRow
    from qsft.data.prompts import document

    mask = [0] * len(exercise.prompt) + record["critical"]
    row = {**document(exercise.prompt, record["response"]), "critical": mask, ORIGIN: "critical"}
    return CuratedRow(exercise, row)


@dataclass
class CriticalTokenSearch:
    """Finds the critical tokens of responses with a greedy sampler."""

    context: "CurationContext"
    sampler: Any
    alternatives: int
    tokens: int = 0  # generated for the current exercise

    def run(self, exercise: "Exercise", of: str) -> "Record":
        """The response's ids, which of them are critical, whether it is correct, and the tokens that were generated."""
        from qsft.data.prompts import response_ids

        self.tokens = 0
        if of == GREEDY:
            response = self.continue_greedily(exercise, [[]])[0]
        else:
            response = response_ids(self.sampler.tokenizer, exercise.response or "")
        is_correct = self.verify(exercise, [response])[0]
        marks = self.find_critical(exercise, response) if is_correct else []
        return {"response": response, "critical": marks, "correct": is_correct, "tokens": self.tokens}

    def find_critical(self, exercise: "Exercise", response: Sequence[int]) -> list[int]:
        """1 for each critical token of a correct response, else 0."""
        others = self.likely_alternatives(exercise, response)
        candidates = list(range(len(response)))  # positions where no alternative was correct so far
        # The most likely alternative is tried first at every position: where it is correct, no second one is needed.
        for rank in range(self.alternatives):
            tried = [position for position in candidates if rank < len(others[position])]
            starts = [[*response[:position], others[position][rank]] for position in tried]
            correct = self.verify(exercise, self.continue_greedily(exercise, starts))
            not_critical = {position for position, is_correct in zip(tried, correct, strict=True) if is_correct}
            candidates = [position for position in candidates if position not in not_critical]
        found = set(candidates)
        return [int(position in found) for position in range(len(response))]

    def likely_alternatives(self, exercise: "Exercise", response: Sequence[int]) -> list[list[int]]:
        """For each position of a response the most likely other tokens."""
        import torch

        model = self.sampler.model.eval()
        with torch.no_grad():
            logits = model(torch.tensor([[*exercise.prompt, *response]], device=model.device)).logits[0]
        count = min(self.alternatives + 1, logits.shape[-1])
        likely = logits[len(exercise.prompt) - 1 : -1].topk(count).indices.tolist()
        alternatives = []
        for tokens, own in zip(likely, response, strict=True):
            alternatives.append([token for token in tokens if token != own][: self.alternatives])
        return alternatives

    def continue_greedily(self, exercise: "Exercise", starts: Sequence[list[int]]) -> list[list[int]]:
        """The responses that begin so, continued greedily to their end or to the longest response."""
        from qsft.inference.sampling import Request

        longest = self.sampler.sampling.max_new_tokens
        if self.context.context_length is not None:
            longest = min(longest, self.context.context_length - len(exercise.prompt))
        requests = []
        for index, ids in enumerate(starts):
            if len(ids) < longest and not self.has_ended(ids):
                prompt = (*exercise.prompt, *ids)
                requests.append(Request(exercise.id, index, prompt, max_new_tokens=longest - len(ids)))
        continuations = {one.sample: one.ids for one in self.sampler.sample(requests)}
        self.tokens += sum(map(len, continuations.values()))
        return [[*ids, *continuations.get(index, ())] for index, ids in enumerate(starts)]

    def has_ended(self, response: Sequence[int]) -> bool:
        return bool(response) and response[-1] in self.sampler.stops.ids

    def verify(self, exercise: "Exercise", responses: Sequence[Sequence[int]]) -> list[bool]:
        """Whether each response is correct; one that did not end is not."""
        texts = [str(self.sampler.tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in responses]
        verdicts = [
            self.context.verdict(text, exercise, ended=self.has_ended(ids)) for ids, text in zip(responses, texts)
        ]
        return [self.context.resolve(verdict, exercise, text) for verdict, text in zip(verdicts, texts)]
