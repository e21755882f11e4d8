"""One demonstration token by token, as the probe behind `qsft explore tokens` sees it, with the slips marked."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from qsft.demo.vocabulary import EQUALS, WORDS
from qsft.demo.world import fact
from qsft.explore.probe import TokenReadings, probe
from qsft.losses.sums import QUADRANTS
from qsft.targets.target import Target
from qsft.teacher.cache import TeacherCache

RESCUE, FILTER = "rescue", "filter"


@dataclass(frozen=True)
class Token:
    """A label token: its probabilities under base and teacher, the trust γ, the likeliest word of the target Q."""

    word: str
    student: float
    teacher: float
    gamma: float
    favourite: str
    slip: bool
    tag: str  # rescue, filter, or nothing where the base finds the token likely


@dataclass(frozen=True)
class Demonstration:
    """A question and the tokens of the solution to it."""

    question: str
    tokens: list[Token]

    @property
    def instructive(self) -> int:
        """How much there is to see: slips that are filtered, results that are rescued."""
        filtered = any(token.slip and token.tag == FILTER for token in self.tokens)
        rescued = any(token.tag == RESCUE and token.word.isdigit() for token in self.tokens)
        return 2 * filtered + rescued


def most_instructive(
    base: PreTrainedModel, documents: Iterable[Mapping[str, Any]], cache: TeacherCache, target: Target
) -> Demonstration:
    """The demonstration that shows most: a slip that is filtered, a result that is rescued."""
    return max(map(_read, probe(base, documents, target, cache)), key=lambda one: one.instructive)


def _read(seen: TokenReadings) -> Demonstration:
    words = [WORDS[i] for i in seen.input_ids]
    return Demonstration(
        " ".join(words[1 : seen.positions[0]]),
        [
            Token(
                words[at],
                student=float(seen.p[i]),
                teacher=float(seen.t[i]),
                gamma=float(seen.gamma[i]),
                favourite=WORDS[_top_of_q(seen, i)],
                slip=words[at - 1] in EQUALS and int(words[at]) != fact(words[at - 3], int(words[at - 2])),
                tag=kind if (kind := QUADRANTS[seen.quadrant[i]]) in (RESCUE, FILTER) else "",
            )
            for i, at in enumerate(seen.positions)
        ],
    )


def _top_of_q(seen: TokenReadings, i: int) -> int:
    """The likeliest token of the target: the label, or one of the likeliest tokens of student and teacher."""
    q = seen.alternatives["q"][i]
    best = int(q.argmax())
    return int(seen.labels[i] if seen.q[i] >= q[best] else seen.alternatives["ids"][i, best])
