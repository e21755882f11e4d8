"""Counterfactually critical tokens, for `cft`: those without which the right answer is out of reach (CFT).

A token is critical iff none of the model's other likely tokens in its place, followed greedily, still ends right.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qsft.curate.context import CurationContext, Kept, decide
from qsft.ledger import Key, Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from qsft.curate.branches import Branch, Trunk
    from qsft.curate.exercises import Exercise

GREEDY, DEMONSTRATION = PLACES = ("greedy", "demonstration")


def critical(
    exercises: "Sequence[Exercise]",
    context: CurationContext,
    *,
    of: str = GREEDY,
    alternatives: int = 3,
    max_new_tokens: int = 1024,
    batch_size: int = 64,
) -> list[Kept]:
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
    fitting = {exercise.id: exercise for exercise in context.answerable({p: p.prompt for p in exercises})}

    def make(missing: list[Key]) -> Iterator[Record]:
        model, tokenizer = context.inside()
        search = Search(model, tokenizer, context, alternatives, max_new_tokens, batch_size)
        for name, _ in missing:
            yield {"problem": name, "sample": 0, **search(fitting[name], of)}

    records = context.fill("critical", [(name, 0) for name in fitting], make)
    for record in records.values():
        context.counts["responses"] += 1
        context.counts["right"] += record["right"]
        context.counts["generated tokens"] += record["tokens"]
        context.counts["label tokens"] += len(record["critical"])
        context.counts["critical tokens"] += sum(record["critical"])
    kept = [_kept(fitting[name], record) for (name, _), record in records.items() if record["right"]]
    context.refuse_empty(kept)
    return kept


class Search:
    """Finds the critical tokens of one exercise's response after another's."""

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        context: CurationContext,
        alternatives: int,
        max_new_tokens: int,
        batch_size: int,
    ) -> None:
        from qsft.curate.branches import end_ids

        self.model, self.tokenizer, self.context = model, tokenizer, context
        self.alternatives, self.max_new_tokens, self.batch_size = alternatives, max_new_tokens, batch_size
        self.ends = end_ids(model, tokenizer)
        self.tokens = 0

    def __call__(self, exercise: "Exercise", of: str) -> Record:
        """The response's ids, which of them are critical, whether it is right, and what finding out cost."""
        from qsft.curate.branches import Trunk

        self.tokens = 0
        response = self.greedy(exercise) if of == GREEDY else self.demonstration(exercise)
        right = self.right(exercise, [response])[0]
        found = self.search(exercise, Trunk(self.model, [*exercise.prompt, *response])) if right else []
        return {"response": response, "critical": found, "right": right, "tokens": self.tokens}

    def greedy(self, exercise: "Exercise") -> list[int]:
        """The ids of the model's own response."""
        from qsft.curate.branches import Branch, Trunk

        trunk = Trunk(self.model, exercise.prompt)
        start = Branch(len(exercise.prompt), int(trunk.logits[-1].argmax()))
        return self.grow(trunk, [start], len(exercise.prompt))[0]

    def demonstration(self, exercise: "Exercise") -> list[int]:
        """The ids of the demonstration and the end token."""
        from qsft.curate.forms import response_ids

        return response_ids(self.tokenizer, exercise.response or "")

    def search(self, exercise: "Exercise", trunk: "Trunk") -> list[int]:
        """1 for each critical token of the response, else 0."""
        from qsft.curate.branches import Branch

        start = len(exercise.prompt)
        still = list(range(start, len(trunk.ids)))  # positions that no alternative has saved so far
        # The likeliest alternative goes first everywhere: a position it saves costs no second branch.
        for rank in range(self.alternatives):
            others = [trunk.others(at, self.alternatives) for at in still]
            branches = [Branch(at, tokens[rank]) for at, tokens in zip(still, others) if rank < len(tokens)]
            grown = self.grow(trunk, branches, start)
            wholes = [[*trunk.ids[start : branch.at], *tokens] for branch, tokens in zip(branches, grown)]
            saved = {branch.at for branch, right in zip(branches, self.right(exercise, wholes)) if right}
            still = [at for at in still if at not in saved]
        return [int(at in set(still)) for at in range(start, len(trunk.ids))]

    def grow(self, trunk: "Trunk", branches: "Sequence[Branch]", start: int) -> list[list[int]]:
        """The tokens of each branch, in batches of neighbouring positions."""
        grown: list[list[int]] = []
        context = self.context.context or start + self.max_new_tokens
        longest = min(start + self.max_new_tokens, context)
        for first in range(0, len(branches), self.batch_size):
            batch = branches[first : first + self.batch_size]
            grown += trunk.grow(batch, [longest - branch.at for branch in batch], self.ends)
        self.tokens += sum(map(len, grown))
        return grown

    def right(self, exercise: "Exercise", responses: Sequence[Sequence[int]]) -> list[bool]:
        """Which responses came to an end and verify."""
        texts = [str(self.tokenizer.decode(list(ids), skip_special_tokens=True)) for ids in responses]
        ended = [bool(ids) and ids[-1] in self.ends for ids in responses]
        verdicts = [self.context.judge(text, exercise) if end else None for text, end in zip(texts, ended)]
        return [decide(verdict, text, exercise) for verdict, text in zip(verdicts, texts)]


def _kept(exercise: "Exercise", record: Record) -> Kept:
    from qsft.curate.forms import document

    mask = [0] * len(exercise.prompt) + record["critical"]
    return Kept(
        exercise, None, "critical", document={**document(exercise.prompt, record["response"]), "critical": mask}
    )
