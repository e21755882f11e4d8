"""What every method works with: exercises, the model, the evaluator's sampler, a verifier, the record of what is done.

prompts → samples → verified, continued where it was killed
"""

import gc
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset

from qsft.curate.exercises import Exercise, Kept, find_gold, read_exercises
from qsft.curate.forms import find_form, pairs
from qsft.data.read import column_names
from qsft.data.sources import DataSettings, find_source
from qsft.evals.model_under_test import ModelUnderTest
from qsft.evals.protocol import Sampling
from qsft.evals.request import Generation, Request, context_of
from qsft.fingerprints import digest_json
from qsft.ledger import Key, Ledger, Record
from qsft.progress import Progress
from qsft.teacher.source import whole_in_every_process

if TYPE_CHECKING:
    from qsft.curate.catalogue import Options
    from qsft.curate.curation import Material

UNVERIFIED = ("grape",)  # methods that need no verifier
LOOKS_INSIDE = ("grape", "critical")  # methods that need the model itself, so no engine that only draws
PENDING = 256  # responses that may wait for their verdict

Verify = Callable[[str, Exercise], "Future[Any]"]  # whether a response solves an exercise


@dataclass
class CurationContext:
    """What a method is handed.

    verify  set while the method runs
    train   trains on rows for a next round: (rows, model to start from, round) → the new model
    watch   called with each new record, in the place of a progress bar
    """

    method: str
    material: "Material"
    options: "Options"
    ledger: Ledger
    verify: Verify = field(init=False)
    train: Callable[[Sequence[Kept], str | None, int], str] = field(init=False)
    watch: Callable[[Record], object] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    _loaded: ModelUnderTest | None = None

    @property
    def needs_gold(self) -> bool:
        """Whether a problem without a gold answer cannot be verified."""
        return self.options.verifier is None and self.method not in UNVERIFIED

    @cached_property
    def positions(self) -> int | None:
        """The most tokens that the model reads: prompt and response together."""
        return context_of(self.load().config)

    def exercises(self, rows: Dataset, settings: DataSettings) -> list[Exercise]:
        """Rows as exercises, each with its gold answer where one is needed."""
        source, tokenizer, options = find_source(settings), self.material.tokenizer, self.options
        wanted = options.gold or (source.gold if source else None)
        told = self.needs_gold or self.method == "star"
        gold = find_gold(column_names(rows), wanted) if told else lambda row, response: None
        if source is None:
            columns = {"question": options.question_column, "response": options.response_column}
            form = find_form(rows.column_names, tokenizer, **columns, ask=settings.prompt)
        else:
            response = settings.response or source.default_response
            form = pairs(tokenizer, lambda row: source.demonstration(row, response), settings.prompt)
        return read_exercises(rows, form, gold)

    def read(self, dataset: str) -> list[Exercise]:
        """The exercises of another data set, by the name or path `dataset` would have in a recipe."""
        assert self.material.other is not None
        return self.exercises(*self.material.other(dataset))

    def record(self, settings: Mapping[str, Any], exercises: Sequence[Exercise]) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        model, data, method = self.load(), self.material.settings, self.method
        # Rounds train with the recipe's values, so a star that was started with others is another star.
        training = {"training": dict(self.material.training)} if method == "star" else {}
        return {
            "method": method,
            "settings": settings,
            "name": model.name,
            **model.record(),
            "data": {"dataset": data.dataset, "data_dir": data.data_dir, "split": data.dataset_split},
            "verifier": None if method in UNVERIFIED else self.options.verifier or "qsft.evals.grade:grade",
            **training,
            "problems": digest_json([[one.id, str(one.gold), one.response] for one in exercises]),
        }

    def load(self, path: str | None = None) -> ModelUnderTest:
        """The material's model, or the one at a path, to draw from; one at a time is kept in memory."""
        wanted, options, group = path or self.material.model, self.options, self.ledger.group
        if self._loaded is None or self._loaded.model != wanted:
            self.free()
            backend = "transformers" if self.method in LOOKS_INSIDE else options.backend
            how: dict[str, Any] = {"device": group.device, "processes": group.count}
            how |= {"batch_size": options.rows_at_once, "tensor_parallel_size": options.tensor_parallel_size}
            self._loaded = ModelUnderTest(wanted, self.material.tokenizer, backend, options.dtype, **how)
        return self._loaded

    def free(self) -> None:
        """Give the model's memory back."""
        self._loaded = None
        gc.collect()
        torch.cuda.empty_cache()

    def sampler(self, model: str | None = None, **how: Any) -> Any:
        """The evaluator's sampler of the model, or of the one at a path."""
        with whole_in_every_process():  # each process draws by itself, though training may shard the model
            return self.load(model).sampler(Sampling(**how))

    def sample(
        self, stage: str, asked: Mapping[Exercise, tuple[int, ...]], *, model: str | None = None, **how: Any
    ) -> dict[Exercise, list[Record]]:
        """n verified samples for each prompt; none for exercises that cannot be verified or fill the context."""
        n, prompts = Sampling(**how).n, self.answerable(asked)
        exercises = {exercise.id: exercise for exercise in prompts}

        def make(missing: list[Key]) -> Iterator[Record]:
            # The stage is part of what seeds a sample, so that a second attempt is another one.
            requests = [Request(f"{stage}/{name}", i, prompts[exercises[name]]) for name, i in missing]
            return self._verified(self.sampler(model, **how).sample(requests), exercises)

        records = self.fill(stage, [(name, i) for name in exercises for i in range(n)], make)
        self.tally(records.values())
        found: dict[Exercise, list[Record]] = {exercise: [] for exercise in asked}
        for (name, _), record in records.items():
            found[exercises[name]].append(record)
        return found

    def answerable(self, asked: Mapping[Exercise, tuple[int, ...]]) -> dict[Exercise, tuple[int, ...]]:
        """The prompts of exercises that can be verified and leave room for a response; the others are counted."""
        told = {p: ids for p, ids in asked.items() if p.gold is not None or not self.needs_gold}
        fitting = {p: ids for p, ids in told.items() if self.positions is None or len(ids) < self.positions}
        self.counts["without a gold answer"] += len(asked) - len(told)
        self.counts["longer than the context"] += len(told) - len(fitting)
        return fitting

    def fill(self, stage: str, keys: Sequence[Key], make: Callable[[list[Key]], Iterable[Record]]) -> dict[Key, Record]:
        """The records of `keys`; what is missing is computed, shown and written as it comes."""

        def shown(missing: list[Key]) -> Iterator[Record]:
            total, right, tokens = len(self.ledger.share(keys)), 0, 0
            show = self.watch is None and self.ledger.group.rank == 0
            with Progress(stage, total, "responses", done=total - len(missing), show=show) as progress:
                for count, record in enumerate(make(missing), start=1):
                    yield record
                    right, tokens = right + record.get("right", 0), tokens + record["tokens"]
                    kept = f", {right / count:.1%} right so far" if "right" in record else ""
                    progress.advance(1, f"{progress.per_second(tokens):,.0f} tokens/s{kept}")

        return self.ledger.fill(stage, keys, shown, self.watch)

    def tally(self, records: Collection[Record]) -> None:
        """Count responses by what became of them."""
        self.counts["responses"] += len(records)
        self.counts["generated tokens"] += sum(record["tokens"] for record in records)
        self.counts["right"] += sum(record["right"] for record in records)
        self.counts["cut off"] += sum(record.get("finish") == "length" for record in records)

    def _verified(self, responses: Iterable[Generation], exercises: Mapping[str, Exercise]) -> Iterator[Record]:
        """The records of responses; grading runs beside the drawing, and the order of drawing is kept."""
        waiting: deque[tuple[Generation, Exercise, Future[Any] | None]] = deque()

        def first() -> Record:
            one, exercise, verdict = waiting.popleft()
            return {**one.record(), "problem": exercise.id, "right": exercise.decide(verdict, one.text)}

        for one in responses:
            exercise = exercises[one.problem.rpartition("/")[2]]
            # A response that was cut off is not verified: its end is missing, whatever it says before.
            waiting.append((one, exercise, self.verify(one.text, exercise) if one.finish == "stop" else None))
            while waiting and (len(waiting) > PENDING or waiting[0][2] is None or waiting[0][2].done()):
                yield first()
        while waiting:
            yield first()

    def refuse_empty(self, kept: Sequence[Any]) -> None:
        """Refuse a result without any right response: it would be an empty data set, or the one that came in."""
        if kept:
            return
        raise ValueError(
            f"the model never answered right: of {self.counts['responses']:,} responses none verified, and "
            f"{self.counts['cut off']:,} were cut off at max_new_tokens or the context. They are in "
            f"{self.ledger.directory}: see whether prompt, gold answers and verifier fit, raise n or max_new_tokens, "
            f"or take a stronger model. Without a gold answer: {self.counts['without a gold answer']:,}; "
            f"longer than the context of {self.positions}: {self.counts['longer than the context']:,}."
        )
