"""What every method works with: exercises, the model, the sampler, a verifier, and the record of finished work."""

import gc
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft.curate.exercises import CuratedRow, Exercise, read_exercises
from qsft.curate.gold_answers import GoldFinder, make_gold_finder, no_gold
from qsft.curate.registry import CurationMethod, Need, Options
from qsft.curate.row_formats import RowReader, find_row_reader, read_pair
from qsft.data.rows import column_names
from qsft.data.sources import DataSettings, find_source
from qsft.fingerprints import digest_json
from qsft.inference.loading import unsharded_loading
from qsft.inference.model import InferenceModel
from qsft.inference.sampling import Generation, Request, Sampling
from qsft.inference.vllm_engine import EngineOptions
from qsft.ledger import Key, Ledger, Record
from qsft.progress import Progress

MAX_UNRESOLVED = 256  # responses that may wait for their verdict
NOT_CORRECT: Future[bool] = Future()  # the verdict on a response that was cut off
NOT_CORRECT.set_result(False)

Prompts = Mapping[Exercise, tuple[int, ...]]  # the token ids to continue, by exercise
Sample = tuple[Exercise, int]  # an exercise and the number of its response
Compute = Callable[[Sequence[Sample]], Iterable[Record]]  # yields the records of samples, one after another
Verdict = Future[Any]  # of what the verifier returns: true if the response is correct
Verify = Callable[[str, Exercise], Verdict]
# Train for a next round: (rows, initial model or None, number of the round) → the new model.
Train = Callable[[Sequence[CuratedRow], str | None, int], str]


@dataclass(frozen=True)
class CurationInputs:
    """What is curated, and by which model.

    Args:
        rows: the rows that training would have read.
        settings: where they come from.
        other_dataset: returns the stored rows of another data set, by name.
        train: trains by the recipe's settings: (directory of rows, initial model, output directory).
        training: those settings, for the record.
    """

    rows: Dataset
    settings: DataSettings
    model: str | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    other_dataset: Callable[[str], tuple[Dataset, DataSettings]] | None = None
    train: Callable[[Path, str, Path], None] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class CurationContext:
    """What a method is given; `verify` and `train` are set while it runs.

    Args:
        watch: called with each new record, instead of a progress bar.
        counts: the counts in the manifest.
    """

    method: CurationMethod
    inputs: CurationInputs
    options: Options
    ledger: Ledger
    verify: Verify = field(init=False)
    train: Train = field(init=False)
    watch: Callable[[Record], object] | None = None
    counts: Counter[str] = field(default_factory=Counter)
    _loaded: InferenceModel | None = None

    # ---- exercises ----

    @property
    def needs_gold(self) -> bool:
        """Whether responses are verified against a gold answer."""
        return Need.VERIFIER in self.method.needs and self.options.verifier is None

    def exercises(self, rows: Dataset, settings: DataSettings) -> list[Exercise]:
        """The exercises of a data set."""
        find_gold: GoldFinder = no_gold
        source = find_source(settings)
        if self.needs_gold or Need.GOLD in self.method.needs:
            default_gold = source.gold if source is not None else None
            find_gold = make_gold_finder(column_names(rows), self.options.gold or default_gold)
        read_row: RowReader
        if source is not None:
            response = settings.response or source.default_response
            read_columns = partial(source.demonstration, response=response)
            read_row = partial(read_pair, self.inputs.tokenizer, read_columns, settings.prompt)
        else:
            read_row = find_row_reader(
                rows.column_names,
                self.inputs.tokenizer,
                question_column=self.options.question_column,
                response_column=self.options.response_column,
                preset=settings.prompt,
            )
        return read_exercises(rows, read_row, find_gold)

    def read_dataset(self, name: str) -> list[Exercise]:
        """The exercises of another data set."""
        assert self.inputs.other_dataset is not None
        return self.exercises(*self.inputs.other_dataset(name))

    def settings_record(self, settings: Any, exercises: Sequence[Exercise]) -> dict[str, Any]:
        """Everything that the result depends on."""
        model = self.load_model()
        data = self.inputs.settings
        record = {
            "method": self.method.name,
            "settings": asdict(settings),
            "name": model.name,
            **model.identity(),
            "data": {"dataset_name": data.dataset_name, "data_dir": data.data_dir, "split": data.dataset_train_split},
            "verifier": None,
            "problems": digest_json([[one.id, str(one.gold), one.response] for one in exercises]),
        }
        if Need.VERIFIER in self.method.needs:
            record["verifier"] = self.options.verifier or "qsft.grade"
        if Need.TRAINING in self.method.needs:
            record["training"] = dict(self.inputs.training)
        return record

    # ---- the model ----

    @cached_property
    def context_length(self) -> int | None:
        return self.load_model().context_length

    def load_model(self, path: str | None = None) -> InferenceModel:
        """The model to sample from, or the one at a path; one at a time is kept in memory."""
        model = path or self.inputs.model
        if self._loaded is None or self._loaded.model != model:
            self.free()
            group = self.ledger.group
            self._loaded = InferenceModel(
                model,
                self.inputs.tokenizer,
                "transformers" if Need.WEIGHTS in self.method.needs else self.options.backend,
                self.options.dtype,
                self.options.sampling_batch_size,
                engine=EngineOptions(tensor_parallel_size=self.options.tensor_parallel_size),
                device=group.device,
                num_processes=group.count,
            )
        return self._loaded

    def free(self) -> None:
        """Free the memory of the model."""
        self._loaded = None
        gc.collect()
        torch.cuda.empty_cache()

    def sampler(self, sampling: Sampling, model: str | None = None) -> Any:
        with unsharded_loading():  # each process samples by itself, though training may shard the model
            return self.load_model(model).sampler(sampling)

    def greedy_sampler(self, max_new_tokens: int = 1) -> Any:
        """A sampler that decodes greedily up to the end token; methods that need logits use its model."""
        return self.sampler(Sampling(num_samples=1, temperature=0.0, max_new_tokens=max_new_tokens, stop=()))

    # ---- sampling and verifying ----

    def sample(
        self, stage: str, prompts: Prompts, sampling: Sampling, *, model: str | None = None
    ) -> dict[Exercise, list[Record]]:
        """Verified samples of each prompt; none for exercises that cannot be verified or that fill the context."""
        usable = self.answerable(prompts)

        def compute(missing: Sequence[Sample]) -> Iterator[Record]:
            # The stage is part of what seeds a sample, so that a second attempt is another one.
            requests = []
            exercises = {}
            for exercise, number in missing:
                problem = f"{stage}/{exercise.id}"
                exercises[problem] = exercise
                requests.append(Request(problem, number, usable[exercise]))
            return self._verified(self.sampler(sampling, model).sample(requests), exercises)

        found = self.fill(stage, usable, compute, sampling.num_samples)
        self.count_responses([record for records in found.values() for record in records])
        return {exercise: found.get(exercise, []) for exercise in prompts}

    def sample_correct(
        self, stage: str, prompts: Prompts, sampling: Sampling, *, model: str | None = None
    ) -> dict[Exercise, list[str]]:
        """The texts of the samples that ended by themselves and verified."""
        found = self.sample(stage, prompts, sampling, model=model)
        return {
            exercise: [record["text"] for record in records if record["correct"]] for exercise, records in found.items()
        }

    def answerable(self, prompts: Prompts) -> Prompts:
        """The prompts that leave space for a response, of exercises that can be verified; the others are counted."""
        verifiable = {one: ids for one, ids in prompts.items() if one.gold is not None or not self.needs_gold}
        limit = self.context_length
        fitting = {one: ids for one, ids in verifiable.items() if limit is None or len(ids) < limit}
        self.counts["without a gold answer"] += len(prompts) - len(verifiable)
        self.counts["longer than the context"] += len(verifiable) - len(fitting)
        return fitting

    def fill(
        self, stage: str, exercises: Iterable[Exercise], compute: Compute, num_samples: int = 1
    ) -> dict[Exercise, list[Record]]:
        """The records of each exercise; missing ones are computed, shown and written as they come."""
        by_id = {exercise.id: exercise for exercise in exercises}
        keys = [(problem, sample) for problem in by_id for sample in range(num_samples)]
        total = len(self.ledger.share(keys))

        def with_progress(missing: Sequence[Key]) -> Iterator[Record]:
            show = self.watch is None and self.ledger.group.rank == 0
            tokens = 0
            correct = 0
            with Progress(stage, total, "responses", done=total - len(missing), show=show) as progress:
                records = compute([(by_id[problem], sample) for problem, sample in missing])
                for count, record in enumerate(records, start=1):
                    yield record
                    tokens += record["tokens"]
                    text = f"{progress.per_second(tokens):,.0f} tokens/s"
                    if "correct" in record:
                        correct += record["correct"]
                        text += f", {correct / count:.1%} correct so far"
                    progress.advance(1, text)

        records = self.ledger.fill(stage, keys, with_progress, on_new=self.watch)
        return {
            exercise: [records[problem, sample] for sample in range(num_samples)] for problem, exercise in by_id.items()
        }

    def count_responses(self, records: Sequence[Record]) -> None:
        self.counts["responses"] += len(records)
        self.counts["generated tokens"] += sum(record["tokens"] for record in records)
        self.counts["correct"] += sum(record["correct"] for record in records)
        self.counts["cut off"] += sum(record.get("finish") == "length" for record in records)

    def verdict(self, text: str, exercise: Exercise, *, ended: bool) -> Verdict:
        """Whether a response solves an exercise; one that was cut off does not."""
        return self.verify(text, exercise) if ended else NOT_CORRECT

    def resolve(self, verdict: Verdict, exercise: Exercise, response: str) -> bool:
        """The verdict on a response, once it is there; ValueError if the verifier raised."""
        try:
            return bool(verdict.result())
        except Exception as error:
            raise ValueError(
                f"the verifier raised {type(error).__name__}: {error} on the response {response[:200]!r} to "
                f"{exercise.question[:200]!r} (gold {exercise.gold!r}). Fix it and rerun the command, which continues."
            ) from error

    def _verified(self, responses: Iterable[Generation], exercises: Mapping[str, Exercise]) -> Iterator[Record]:
        """The records of responses in the order of sampling; verifying runs beside the sampling."""
        unresolved: deque[tuple[Generation, Verdict]] = deque()
        for generation in responses:
            exercise = exercises[generation.problem]
            verdict = self.verdict(generation.text, exercise, ended=generation.finish == "stop")
            unresolved.append((generation, verdict))
            while unresolved and (len(unresolved) > MAX_UNRESOLVED or unresolved[0][1].done()):
                yield self._record(*unresolved.popleft(), exercises)
        for generation, verdict in unresolved:
            yield self._record(generation, verdict, exercises)

    def _record(self, generation: Generation, verdict: Verdict, exercises: Mapping[str, Exercise]) -> Record:
        exercise = exercises[generation.problem]
        correct = self.resolve(verdict, exercise, generation.text)
        return {**generation.record(), "problem": exercise.id, "correct": correct}

    def check_any_correct(self, correct: Sequence[Any]) -> None:
        """Raise ValueError if no response was correct: the result would be empty, or equal to the data set."""
        if not correct:
            raise ValueError(
                f"no response of the model was correct: of {self.counts['responses']:,} responses none verified, and "
                f"{self.counts['cut off']:,} were cut off. Check in {self.ledger.directory} whether prompt, gold "
                f"answers and verifier fit, raise num_samples or max_new_tokens, or use a stronger model. "
                f"Counts: {dict(self.counts)}."
            )
