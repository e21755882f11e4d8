"""The engine every method works with: prompts → samples → verified, continued where it was killed.

The sampler, the verifier, the model and the trainer come from other rooms: a workshop is what a method is handed.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from qsft.data.curate.ledger import Key, Ledger, Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from qsft.data.curate.problems import Problem

PENDING = 256  # responses that may wait for their verdict


class Request(NamedTuple):
    """One response to draw."""

    problem: str
    sample: int
    prompt: tuple[int, ...]


class Response(Protocol):
    """What a sampler gives back: text without special tokens, tokens drawn, finish `stop` or `length`."""

    problem: str
    sample: int
    text: str
    tokens: int
    finish: str


@dataclass(frozen=True)
class Sample:
    """A drawn response. `right`: it came to its own end and verified."""

    text: str
    right: bool
    finish: str


@dataclass(frozen=True)
class Kept:
    """One row of the result: a problem with a response (None: the row as it was), where it is from, further columns."""

    problem: "Problem"
    response: str | None
    origin: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] | None = None  # token-aligned columns that replace the row

    def row(self) -> dict[str, Any]:
        """The row that is written."""
        row = self.problem.rewritten(self.response) if self.document is None else self.document
        return {**row, **self.columns, "curated": self.origin}


Draw = Callable[[Sequence[Request], Mapping[str, Any], str | None], Iterable[Response]]  # what, how, by which model
Verify = Callable[[str, "Problem"], "bool | Future[Any]"]
Train = Callable[[Sequence[Kept], str | None, int], str]


@dataclass
class Workshop:
    """What a method works with.

    draw      draws responses from the model, or from the one at a path
    verify    whether a response solves a problem, now or as a Future
    golds     whether `verify` reads the gold answer, so that problems without one are left alone
    model     loads the model and its tokenizer, for methods that look inside
    read      the problems of another data set, by name
    train     trains on rows for a next round: (rows, model to start from, round) → the new model
    """

    ledger: Ledger
    draw: Draw
    verify: Verify
    model: "Callable[[], tuple[PreTrainedModel, PreTrainedTokenizerBase]]"
    golds: bool = True
    context: int | None = None
    read: "Callable[[str], list[Problem]] | None" = None
    train: Train | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def sample(
        self,
        stage: str,
        asked: "Mapping[Problem, tuple[int, ...]]",
        *,
        n: int = 1,
        model: str | None = None,
        **how: Any,
    ) -> "dict[Problem, list[Sample]]":
        """n verified samples for each prompt; none for problems that cannot be verified or fill the model's context."""
        if n < 1 or (n > 1 and how.get("temperature") == 0):
            raise ValueError(f"n={n} at temperature {how.get('temperature')}: n is 1 or more; greedy, it is 1.")
        problems = {p.id: p for p in asked if self.can_verify(p)}
        prompts = {p.id: ids for p, ids in asked.items() if p.id in problems and self.has_room(ids)}

        def make(missing: list[Key]) -> Iterator[Record]:
            requests = [Request(f"{stage}/{name}", number, prompts[name]) for name, number in missing]
            return self._verified(self.draw(requests, how, model), problems)

        records = self.ledger.fill(stage, [(name, number) for name in prompts for number in range(n)], make)
        self._count(records.values())
        found: dict[Problem, list[Sample]] = {p: [] for p in asked}
        for (name, _), record in records.items():
            found[problems[name]].append(Sample(record["text"], record["right"], record["finish"]))
        return found

    def _verified(self, responses: Iterable[Response], problems: "Mapping[str, Problem]") -> Iterator[Record]:
        """The records of responses; grading runs beside the drawing, and the order of drawing is kept."""
        waiting: deque[tuple[Record, Problem, bool | Future[Any]]] = deque()
        for one in responses:
            name = one.problem.rpartition("/")[2]
            drawn = {"text": one.text, "tokens": one.tokens, "finish": one.finish}
            # A response that was cut off is not verified: its end is missing, whatever it says before.
            verdict = self.judge(one.text, problems[name]) if one.finish == "stop" else False
            waiting.append(({"problem": name, "sample": one.sample, **drawn}, problems[name], verdict))
            while waiting and (len(waiting) > PENDING or _is_known(waiting[0][2])):
                yield _decided(*waiting.popleft())
        for entry in waiting:
            yield _decided(*entry)

    def can_verify(self, problem: "Problem") -> bool:
        """Whether a response to the problem can be verified; counted where not."""
        self.counts["without a gold answer"] += (blind := self.golds and problem.gold is None)
        return not blind

    def has_room(self, ids: Sequence[int], wanted: int = 1) -> bool:
        """Whether the model's context leaves room for so many tokens more; counted where not."""
        full = self.context is not None and len(ids) + wanted > self.context
        self.counts["longer than the context"] += full
        return not full

    def judge(self, text: str, problem: "Problem") -> "bool | Future[Any]":
        """The verdict on a response, now or in future."""
        try:
            return self.verify(text, problem)
        except Exception as error:
            raise _verifier_raised(error, text, problem) from error

    def refuse_empty(self, kept: Sequence[Any]) -> None:
        """Refuse a result without any right response: it would be an empty data set, or the one that came in."""
        if kept:
            return
        raise ValueError(
            f"the model never answered right: of {self.counts['responses']:,} responses none verified, and "
            f"{self.counts['cut off']:,} were cut off at max_new_tokens or the context. They are in "
            f"{self.ledger.directory}: see whether prompt, gold answers and verifier fit, raise n or max_new_tokens, "
            f"or take a stronger model. Without a gold answer: {self.counts['without a gold answer']:,}; "
            f"longer than the context of {self.context}: {self.counts['longer than the context']:,}."
        )

    def _count(self, records: Iterable[Record]) -> None:
        for record in records:
            self.counts["responses"] += 1
            self.counts["generated tokens"] += record["tokens"]
            self.counts["right"] += record["right"]
            self.counts["cut off"] += record["finish"] == "length"


def decide(verdict: "bool | Future[Any]", text: str, problem: "Problem") -> bool:
    """The verdict as true or false, once it is there."""
    try:
        return bool(verdict.result() if isinstance(verdict, Future) else verdict)
    except Exception as error:
        raise _verifier_raised(error, text, problem) from error


def _is_known(verdict: "bool | Future[Any]") -> bool:
    return not isinstance(verdict, Future) or verdict.done()


def _decided(record: Record, problem: "Problem", verdict: "bool | Future[Any]") -> Record:
    return {**record, "right": decide(verdict, record["text"], problem)}


def _verifier_raised(error: Exception, text: str, problem: "Problem") -> ValueError:
    return ValueError(
        f"the verifier raised {type(error).__name__}: {error} on the response {text[:200]!r} to "
        f"{problem.question[:200]!r} (gold {problem.gold!r}). What was verified before is kept: mend the verifier "
        "and run the same command again."
    )
