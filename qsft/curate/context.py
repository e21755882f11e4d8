"""What every method works with: exercises, the model, the evaluator's sampler, a verifier, the record of what is done.

prompts → samples → verified, continued where it was killed
"""

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft.curate.catalogue import Options
from qsft.curate.exercises import Exercise, Kept, find_form, find_gold, pairs, read_exercises
from qsft.data.load import column_names
from qsft.data.sources import DataSettings, find_source
from qsft.fingerprints import digest_json
from qsft.inference.loading import unsharded_loading
from qsft.inference.model import InferenceModel
from qsft.inference.sampling import Generation, Request, Sampling
from qsft.inference.vllm_engine import EngineOptions
from qsft.ledger import Key, Ledger, Record
from qsft.progress import Progress

UNVERIFIED = ("grape",)  # methods that need no verifier
LOOKS_INSIDE = ("grape", "critical")  # methods that need the model itself, so no engine that only draws
PENDING = 256  # responses that may wait for their verdict
CUT_OFF: Future[bool] = Future()  # the verdict on a response whose end is missing
CUT_OFF.set_result(False)

Asked = Mapping[Exercise, tuple[int, ...]]  # the prompt of each exercise
Sample = tuple[Exercise, int]
Make = Callable[[Sequence[Sample]], Iterable[Record]]  # computes what is missing, one record after another


@dataclass(frozen=True)
class Material:
    """What is curated, and by which model: filled in by whoever knows the recipe."""

    rows: Dataset  # that training would have seen
    settings: DataSettings
    model: str | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    other: Callable[[str], tuple[Dataset, DataSettings]] | None = None  # the stored rows of another data set
    # Trains by the recipe's settings: (directory of rows, model to start from, directory of the new one).
    train: Callable[[Path, str, Path], None] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)  # those settings, for the record


@dataclass
class CurationContext:
    """What a method is handed; `verify` and `train` are set while it runs."""

    method: str
    material: Material
    options: Options
    ledger: Ledger
    verify: Callable[[str, Exercise], "Future[Any]"] = field(init=False)  # whether a response solves an exercise
    # Trains for a next round: (rows, model to start from, round) → the new model.
    train: Callable[[Sequence[Kept], str | None, int], str] = field(init=False)
    watch: Callable[[Record], object] | None = None  # called with each new record, in the place of a progress bar
    counts: Counter[str] = field(default_factory=Counter)
    _loaded: InferenceModel | None = None

    @property
    def needs_gold(self) -> bool:
        return self.options.verifier is None and self.method not in UNVERIFIED

    @cached_property
    def positions(self) -> int | None:
        return self.load().context_length

    def exercises(self, rows: Dataset, settings: DataSettings) -> list[Exercise]:
        source, tokenizer, options = find_source(settings), self.material.tokenizer, self.options
        gold: Callable[[Any, str | None], Any] = lambda row, response: None  # noqa: E731
        if self.needs_gold or self.method == "star":
            gold = find_gold(column_names(rows), options.gold or (source.gold if source else None))
        if source is None:
            columns = {"question": options.question_column, "response": options.response_column}
            form = find_form(rows.column_names, tokenizer, **columns, prompt=settings.prompt)
        else:
            pair = partial(source.demonstration, response=settings.response or source.default_response)
            form = partial(pairs, tokenizer, pair, settings.prompt)
        return read_exercises(rows, form, gold)

    def read(self, dataset: str) -> list[Exercise]:
        assert self.material.other is not None
        return self.exercises(*self.material.other(dataset))

    def record(self, settings: Mapping[str, Any], exercises: Sequence[Exercise]) -> dict[str, Any]:
        model, data, method = self.load(), self.material.settings, self.method
        return {
            "method": method,
            "settings": settings,
            "name": model.name,
            **model.identity(),
            "data": {"dataset": data.dataset_name, "data_dir": data.data_dir, "split": data.dataset_train_split},
            "verifier": None if method in UNVERIFIED else self.options.verifier or "qsft.grade",
            # Rounds train with the recipe's values, so a star that was started with others is another star.
            **({"training": dict(self.material.training)} if method == "star" else {}),
            "problems": digest_json([[one.id, str(one.gold), one.response] for one in exercises]),
        }

    def load(self, path: str | None = None) -> InferenceModel:
        """The material's model, or the one at a path, to draw from; one at a time is kept in memory."""
        wanted, options, group = path or self.material.model, self.options, self.ledger.group
        if self._loaded is None or self._loaded.model != wanted:
            self.free()
            backend = "transformers" if self.method in LOOKS_INSIDE else options.backend
            how: dict[str, Any] = {"device": group.device, "num_processes": group.count}
            how |= {"batch_size": options.rows_at_once}
            how["engine"] = EngineOptions(tensor_parallel_size=options.tensor_parallel_size)
            self._loaded = InferenceModel(wanted, self.material.tokenizer, backend, options.dtype, **how)
        return self._loaded

    def free(self) -> None:
        self._loaded = None
        gc.collect()
        torch.cuda.empty_cache()

    def sampler(self, model: str | None = None, **how: Any) -> Any:
        with unsharded_loading():  # each process draws by itself, though training may shard the model
            return self.load(model).sampler(Sampling(**how))

    def sample(self, stage: str, asked: Asked, *, model: str | None = None, **how: Any) -> dict[Exercise, list[Record]]:
        """n verified samples for each prompt; none for exercises that cannot be verified or fill the context."""
        n, prompts = Sampling(**how).num_samples, self.answerable(asked)

        def make(missing: Sequence[Sample]) -> Iterator[Record]:
            # The stage is part of what seeds a sample, so that a second attempt is another one.
            requests = [Request(f"{stage}/{one.id}", i, prompts[one]) for one, i in missing]
            exercises = {request.problem: one for request, (one, _) in zip(requests, missing)}
            return self._verified(self.sampler(model, **how).sample(requests), exercises)

        found = self.fill(stage, prompts, make, n)
        self.tally([record for records in found.values() for record in records])
        return {exercise: found.get(exercise, []) for exercise in asked}

    def answerable(self, asked: Asked) -> Asked:
        """The prompts of exercises that can be verified and leave room for a response; the others are counted."""
        told = {p: ids for p, ids in asked.items() if p.gold is not None or not self.needs_gold}
        fitting = {p: ids for p, ids in told.items() if self.positions is None or len(ids) < self.positions}
        self.counts["without a gold answer"] += len(asked) - len(told)
        self.counts["longer than the context"] += len(told) - len(fitting)
        return fitting

    def fill(self, stage: str, exercises: Iterable[Exercise], make: Make, n: int = 1) -> dict[Exercise, list[Record]]:
        """n records of each exercise; what is missing is made, shown and written as it comes."""
        by_id = {exercise.id: exercise for exercise in exercises}
        keys = [(name, i) for name in by_id for i in range(n)]

        def shown(missing: Sequence[Key]) -> Iterator[Record]:
            total, right, tokens = len(self.ledger.share(keys)), 0, 0
            show = self.watch is None and self.ledger.group.rank == 0
            with Progress(stage, total, "responses", done=total - len(missing), show=show) as progress:
                for count, record in enumerate(make([(by_id[name], i) for name, i in missing]), start=1):
                    yield record
                    right, tokens = right + record.get("right", 0), tokens + record["tokens"]
                    kept = f", {right / count:.1%} right so far" if "right" in record else ""
                    progress.advance(1, f"{progress.per_second(tokens):,.0f} tokens/s{kept}")

        records = self.ledger.fill(stage, keys, shown, on_new=self.watch)
        return {exercise: [records[name, i] for i in range(n)] for name, exercise in by_id.items()}

    def tally(self, records: Sequence[Record]) -> None:
        self.counts["responses"] += len(records)
        self.counts["generated tokens"] += sum(record["tokens"] for record in records)
        self.counts["right"] += sum(record["right"] for record in records)
        self.counts["cut off"] += sum(record.get("finish") == "length" for record in records)

    def verdict(self, text: str, exercise: Exercise, *, ended: bool) -> "Future[Any]":
        """Whether a response solves an exercise; one that was cut off does not, whatever it says before."""
        return self.verify(text, exercise) if ended else CUT_OFF

    def _verified(self, responses: Iterable[Generation], exercises: Mapping[str, Exercise]) -> Iterator[Record]:
        """The records of responses; grading runs beside the drawing, and the order of drawing is kept."""
        waiting: deque[tuple[Generation, Exercise, Future[Any]]] = deque()
        for one in responses:
            exercise = exercises[one.problem]
            waiting.append((one, exercise, self.verdict(one.text, exercise, ended=one.finish == "stop")))
            while waiting and (len(waiting) > PENDING or waiting[0][2].done()):
                yield _record(*waiting.popleft())
        yield from (_record(*left) for left in waiting)

    def refuse_empty(self, kept: Sequence[Any]) -> None:
        """Refuse a result without any right response: it would be an empty data set, or the one that came in."""
        if not kept:
            raise ValueError(
                f"the model never answered right: of {self.counts['responses']:,} responses none verified, and "
                f"{self.counts['cut off']:,} were cut off. See in {self.ledger.directory} whether prompt, gold answers "
                f"and verifier fit, raise num_samples or max_new_tokens, or take a stronger model. {dict(self.counts)}"
            )


def _record(one: Generation, exercise: Exercise, verdict: "Future[Any]") -> Record:
    return {**one.record(), "problem": exercise.id, "right": exercise.decide(verdict, one.text)}
