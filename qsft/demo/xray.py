"""One demonstration token by token: what the base and the teacher think of it, and what Target-SFT makes of that."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import PreTrainedModel

from qsft.demo.vocabulary import EQUALS, WORDS
from qsft.demo.world import fact
from qsft.losses.sums import QUADRANTS, quadrant
from qsft.targets.target import Target
from qsft.targets.view import TokenView
from qsft.targets.zoo import make_target
from qsft.teacher.cache import TeacherCache

RESCUE, FILTER = QUADRANTS[:2]
CANDIDATES = 128


@dataclass(frozen=True)
class Token:
    """A label token: its probabilities under base and teacher, the trust γ, the likeliest word of the target Q."""

    word: str
    student: float
    teacher: float
    gamma: float
    favourite: str
    slip: bool

    @property
    def tag(self) -> str:
        """`rescue`: the base finds it unlikely, the teacher likely; `filter`: both unlikely; else nothing."""
        name = QUADRANTS[quadrant(self.student, self.teacher)]
        return name if name in (RESCUE, FILTER) else ""


@dataclass(frozen=True)
class Demonstration:
    """A question and the tokens of the solution to it."""

    question: str
    tokens: list[Token]

    @property
    def instructive(self) -> int:
        """How much there is to see: slips that are filtered, results that are rescued."""
        filtered = sum(token.slip and token.tag == FILTER for token in self.tokens)
        rescued = sum(token.tag == RESCUE and token.word.isdigit() for token in self.tokens)
        return 2 * bool(filtered) + bool(rescued)


def most_instructive(
    base: PreTrainedModel, data: Dataset, cache: TeacherCache, target: Target | None = None
) -> Demonstration:
    """Of the first demonstrations, the one that shows most: a slip that is filtered, a result that is rescued."""
    rows = data.select(range(min(CANDIDATES, len(data))))
    return max(_read(base, rows, cache, target or make_target("target")), key=lambda one: one.instructive)


@torch.no_grad()
def _read(
    base: PreTrainedModel, rows: Sequence[Mapping[str, list[int]]], cache: TeacherCache, target: Target
) -> Iterator[Demonstration]:
    for row in rows:
        words = [WORDS[i] for i in row["input_ids"]]
        start = sum(label < 0 for label in row["labels"])
        labels = torch.tensor(row["labels"][start:])
        logits = base.eval()(torch.tensor([row["input_ids"]])).logits[0, start - 1 : -1]
        teacher = cache.lookup(row["input_ids"], row["labels"]).to(logits.device, logits.dtype)
        view = TokenView.of(logits, labels, teacher)
        q = target(view)
        favourites = q.dense(logits.softmax(dim=-1)).argmax(dim=-1).tolist()
        assert teacher.label_logp is not None
        student, taught = view.label_logp.exp().tolist(), teacher.label_logp.exp().tolist()
        tokens = [
            Token(words[start + i], student[i], taught[i], gamma, WORDS[favourites[i]], _is_slip(words, start + i))
            for i, gamma in enumerate(q.gamma.tolist())
        ]
        yield Demonstration(" ".join(words[1:start]), tokens)


def _is_slip(words: list[str], at: int) -> bool:
    """Whether the word is the result of a step, and not the right one."""
    return words[at - 1] in EQUALS and int(words[at]) != fact(words[at - 3], int(words[at - 2]))
