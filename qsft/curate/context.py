"""What every method works with: the model, the evaluator's sampler, a verifier, and the record of what is done.

prompts → samples → verified, continued where it was killed
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from qsft.ledger import Key, Ledger, Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from qsft.curate.exercises import Exercise
    from qsft.evals.model_under_test import ModelUnderTest
    from qsft.evals.request import Generation

PENDING = 256  # responses that may wait for their verdict


class Sample(NamedTuple):
    """A drawn response. `right`: it came to its own end and verified."""

    text: str
    right: bool
    finish: str


@dataclass(frozen=True)
class Kept:
    """One row of the result: an exercise with a response (None: its own), where it is from, further columns."""

    exercise: "Exercise"
    response: str | None
    origin: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    document: Mapping[str, Any] | None = None  # token-aligned columns that replace the row

    def row(self) -> dict[str, Any]:
        """The row that is written."""
        row = self.exercise.rewritten(self.response) if self.document is None else self.document
        return {**row, **self.columns, "curated": self.origin}


Verify = Callable[[str, "Exercise"], "bool | Future[Any]"]
Train = Callable[[Sequence[Kept], str | None, int], str]


@dataclass
class CurationContext:
    """What a method is handed.

    load        the model, or the one at a path, to draw from; one at a time is kept in memory
    verify      whether a response solves an exercise, now or as a Future
    needs_gold  whether `verify` reads the gold answer, so that exercises without one are left alone
    read        the exercises of another data set, by name
    train       trains on rows for a next round: (rows, model to start from, round) → the new model
    bind        called before a first record is written: from now on the directory belongs to these settings
    watch       called with each new record, in the place of a progress bar
    """

    ledger: Ledger
    load: "Callable[[str | None], ModelUnderTest]"
    verify: Verify
    needs_gold: bool = True
    context: int | None = None
    read: "Callable[[str], list[Exercise]] | None" = None
    train: Train | None = None
    bind: Callable[[], object] = lambda: None
    watch: Callable[[Record], object] | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def sample(
        self,
        stage: str,
        asked: "Mapping[Exercise, tuple[int, ...]]",
        *,
        n: int = 1,
        model: str | None = None,
        **how: Any,
    ) -> "dict[Exercise, list[Sample]]":
        """n verified samples for each prompt; none for exercises that cannot be verified or fill the context."""
        if n < 1 or (n > 1 and how.get("temperature") == 0):
            raise ValueError(f"--n {n} at --temperature {how.get('temperature')}: n is 1 or more; greedy, it is 1.")
        prompts = self.answerable(asked)
        exercises = {exercise.id: exercise for exercise in prompts}

        def make(missing: list[Key]) -> Iterator[Record]:
            from qsft.evals.request import Request

            # The stage is part of what seeds a sample, so that a second attempt is another one.
            requests = [Request(f"{stage}/{name}", i, prompts[exercises[name]]) for name, i in missing]
            return self._verified(self.sampler(model, **how).sample(requests), exercises)

        records = self.fill(stage, [(name, i) for name in exercises for i in range(n)], make)
        found: dict[Exercise, list[Sample]] = {exercise: [] for exercise in asked}
        for (name, _), record in records.items():
            self.counts["responses"] += 1
            self.counts["generated tokens"] += record["tokens"]
            self.counts["right"] += record["right"]
            self.counts["cut off"] += record["finish"] == "length"
            found[exercises[name]].append(Sample(record["text"], record["right"], record["finish"]))
        return found

    def answerable(self, asked: "Mapping[Exercise, tuple[int, ...]]") -> "dict[Exercise, tuple[int, ...]]":
        """The prompts of exercises that can be verified and leave room for a response; the others are counted."""
        blind = [exercise for exercise in asked if self.needs_gold and exercise.gold is None]
        rest = {exercise: ids for exercise, ids in asked.items() if exercise not in set(blind)}
        fitting = {exercise: ids for exercise, ids in rest.items() if self.context is None or len(ids) < self.context}
        self.counts["without a gold answer"] += len(blind)
        self.counts["longer than the context"] += len(rest) - len(fitting)
        return fitting

    def fill(self, stage: str, keys: Sequence[Key], make: Callable[[list[Key]], Iterable[Record]]) -> dict[Key, Record]:
        """The records of `keys`; what is missing is computed, shown and written as it comes."""
        from qsft.progress import Progress

        def shown(missing: list[Key]) -> Iterator[Record]:
            total, right, tokens = len(self.ledger.share(keys)), 0, 0
            show = self.watch is None and self.ledger.group.rank == 0
            with Progress(stage, total, "responses", done=total - len(missing), show=show) as progress:
                for count, record in enumerate(make(missing), start=1):
                    if count == 1:
                        self.bind()
                    yield record
                    right, tokens = right + record.get("right", 0), tokens + record["tokens"]
                    kept = f", {right / count:.1%} right so far" if "right" in record else ""
                    progress.advance(1, f"{progress.per_second(tokens):,.0f} tokens/s{kept}")

        return self.ledger.fill(stage, keys, shown, self.watch)

    def sampler(self, model: str | None = None, **how: Any) -> Any:
        """The evaluator's sampler of the model, or of the one at a path."""
        from qsft.evals.protocol import Sampling
        from qsft.teacher.source import whole_in_every_process

        with whole_in_every_process():  # each process draws by itself, though training may shard the model
            return self.load(model).sampler(Sampling(**{"n": 1, **how}))

    def inside(self) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        """The model itself, for methods that look inside."""
        sampler = self.sampler()
        return sampler.model.eval(), sampler.tokenizer

    def judge(self, text: str, exercise: "Exercise") -> "Future[Any]":
        """The future verdict on a response."""
        future: Future[Any] = Future()
        try:
            verdict = self.verify(text, exercise)
        except Exception as error:
            future.set_exception(error)
            return future
        if isinstance(verdict, Future):
            return verdict
        future.set_result(verdict)
        return future

    def _verified(self, responses: "Iterable[Generation]", exercises: "Mapping[str, Exercise]") -> Iterator[Record]:
        """The records of responses; grading runs beside the drawing, and the order of drawing is kept."""
        waiting: deque[tuple[Record, Exercise, Future[Any] | None]] = deque()
        for one in responses:
            exercise = exercises[one.problem.rpartition("/")[2]]
            drawn = {"text": one.text, "tokens": one.tokens, "finish": one.finish}
            # A response that was cut off is not verified: its end is missing, whatever it says before.
            verdict = self.judge(one.text, exercise) if one.finish == "stop" else None
            waiting.append(({"problem": exercise.id, "sample": one.sample, **drawn}, exercise, verdict))
            while waiting and (len(waiting) > PENDING or waiting[0][2] is None or waiting[0][2].done()):
                yield _decided(*waiting.popleft())
        for entry in waiting:
            yield _decided(*entry)

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


def decide(verdict: "Future[Any] | None", text: str, exercise: "Exercise") -> bool:
    """The verdict as true or false, once it is there; no verdict is false."""
    try:
        return verdict is not None and bool(verdict.result())
    except Exception as error:
        raise ValueError(
            f"the verifier raised {type(error).__name__}: {error} on the response {text[:200]!r} to "
            f"{exercise.question[:200]!r} (gold {exercise.gold!r}). What was verified before is kept: fix the verifier "
            "and rerun the command."
        ) from error


def _decided(record: Record, exercise: "Exercise", verdict: "Future[Any] | None") -> Record:
    return {**record, "right": decide(verdict, record["text"], exercise)}
