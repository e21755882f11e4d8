"""A data-level method on a recipe's data: the sampler, the grader, the model and the trainer that it works with.

qsft curate rft RECIPE --n 8                 calls curate_job
curate: {"method": "rft", "n": 8}            in a recipe calls it before training, and trains on what it made
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.data.curate.methods import VERIFYING, check_settings
from qsft.data.curate.run import GENERATIONS, ROUNDS, curate, write
from qsft.data.curate.workshop import Kept, Request, Response, Verify, Workshop
from qsft.data.sources import find_source
from qsft.recipe.job import DEMO, Job, configure
from qsft.recipe.settings import RecipeSettings

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from qsft.data.curate.forms import Form
    from qsft.data.curate.problems import Problem
    from qsft.evals.models import Processes, Source

LOOKS_INSIDE = ("grape", "critical")  # need the model itself, so no engine that only draws
GOLDS = {"numina": "boxed", "openr1": "boxed", "m23k": "answer_letter", DEMO: "answer"}
DEMO_VERIFIER = "qsft.demo.curated:verify"


@dataclass(frozen=True)
class Options:
    """How a method is run, beside its own settings."""

    gold: str | None = None
    verifier: str | None = None
    question_column: str | None = None
    response_column: str | None = None
    limit: int | None = None
    backend: str = "auto"
    dtype: str = "auto"
    rows_at_once: int | None = None
    tensor_parallel_size: int = 1
    fresh: bool = False


def curate_job(job: Job, method: str, settings: Mapping[str, Any], out: Path, options: Options) -> dict[str, Any]:
    """The manifest of the data set that a method makes of a job's training rows, in `out`."""
    from qsft.evals.models import Processes

    settings = check_settings(method, settings)
    group = Processes()
    reader = Reader(job, method, options)
    problems = reader.problems
    models = Models(job, options, group, looks_inside=method in LOOKS_INSIDE)
    with verifier(reader.verifier) as verify:
        workshop = make_workshop(models, verify, out, reader)
        made_by = {**models.record(), **reader.record()}
        return curate(method, settings, problems, workshop, out, made_by=made_by, fresh=options.fresh)


def curated_settings(job: Job) -> RecipeSettings:
    """The data settings of a job whose recipe has the key `curate`; its rows are curated now, unless they were."""
    wanted = dict(job.settings.curate or {})
    if "method" not in wanted:
        raise ValueError(f'curate={wanted} names no method. Write for example {{"method": "rft", "n": 8}}.')
    out = Path(wanted.pop("out", Path(job.args.output_dir, "curated")))
    options = Options(**{item.name: wanted.pop(item.name) for item in fields(Options) if item.name in wanted})
    curate_job(job, wanted.pop("method"), wanted, out, options)
    own = {"dataset": str(out), "dataset_split": "train", "dataset_config": None, "dataset_revision": None}
    return replace(job.settings, **own, data_dir=None, response=None, sample_rows=None, curate=None)


def make_workshop(models: "Models", verify: Verify, out: Path, reader: "Reader") -> Workshop:
    """What the method works with."""
    from qsft.data.curate.ledger import Ledger
    from qsft.evals.progress import Progress

    group = models.group

    def progress(stage: str, total: int, done: int) -> Progress:
        return Progress(stage, total, done, rate="kept", silent=group.rank > 0)

    return Workshop(
        ledger=Ledger(out / GENERATIONS, group, progress),
        draw=models.draw,
        verify=verify,
        model=models.inside,
        golds=reader.reads_gold,
        context=models.context,
        read=reader.other,
        train=lambda kept, start, number: train_round(models, kept, start, out / ROUNDS / str(number)),
    )


@dataclass(frozen=True)
class Reader:
    """The problems of a job's training rows, and of other data sets in the same way."""

    job: Job
    method: str
    options: Options

    @property
    def verifier(self) -> str | None:
        """The user's function, module:function; None is the evaluator's grading."""
        return self.options.verifier or (DEMO_VERIFIER if self.job.settings.dataset == DEMO else None)

    @property
    def reads_gold(self) -> bool:
        """Whether a problem without a gold answer cannot be verified."""
        return self.options.verifier is None and self.method in VERIFYING

    @cached_property
    def problems(self) -> "list[Problem]":
        """The rows that training would have seen, as problems."""
        chosen = self.job.load(self.job.settings).manifest["row_ids"][: self.options.limit]
        rows = self.job.stored_rows(self.job.settings).select(chosen)
        if self.job.settings.dataset == DEMO:
            from qsft.demo.curated import with_answers

            rows = with_answers(rows)
        return self.read(rows, self.job.settings)

    def other(self, dataset: str) -> "list[Problem]":
        """The problems of another data set, by the name or path `dataset` would have in a recipe."""
        settings = replace(self.job.settings, dataset=dataset, data_dir=None)
        return self.read(self.job.stored_rows(settings), settings)

    def read(self, rows: "Dataset", settings: RecipeSettings) -> "list[Problem]":
        """Rows as problems, each with its gold answer where one is needed."""
        from qsft.data.curate.problems import find_gold, read_problems
        from qsft.data.read import column_names
        from qsft.evals.answers import extract

        wanted = self.options.gold or GOLDS.get(settings.dataset or "")
        gold = find_gold(column_names(rows), wanted) if self.reads_gold or self.method == "star" else None
        boxed = lambda text: extract(text) if "\\boxed" in text else None  # noqa: E731
        return read_problems(rows, self.form(rows, settings), gold=gold, boxed=boxed)

    def form(self, rows: "Dataset", settings: RecipeSettings) -> "Form":
        """How the rows are read and written."""
        from qsft.data.curate.forms import Pairs, find_form

        source, tokenizer = find_source(settings.dataset), self.job.tokenizer
        if source is not None:
            response = settings.response or source.default_response
            return Pairs(tokenizer, lambda row: source.demonstration(row, response), settings.prompt)
        columns = {"question": self.options.question_column, "response": self.options.response_column}
        return find_form(rows.column_names, tokenizer, **columns, ask=settings.prompt)

    def record(self) -> dict[str, Any]:
        """Where the problems come from and who verifies."""
        settings = self.job.settings
        place = {"dataset": settings.dataset, "data_dir": settings.data_dir, "split": settings.dataset_split}
        judged_by = self.verifier or "qsft.evals.grade:grade"
        found = {"data": place, "verifier": judged_by if self.method in VERIFYING else None}
        # Rounds train with the recipe's values, so a star that was begun with others is another star.
        return {**found, "training": dict(self.job.recipe.values)} if self.method == "star" else found


@dataclass
class Models:
    """The job's model and those of later rounds, one at a time in memory."""

    job: Job
    options: Options
    group: "Processes"
    looks_inside: bool = False
    _loaded: "tuple[str, Source] | None" = field(default=None, repr=False)

    def source(self, path: str | None = None) -> "Source":
        """The model at a path, or the job's own; loading one drops the other."""
        from qsft.evals.models import Source

        path = path or str(self.job.model.model_name_or_path)
        if self._loaded is None or self._loaded[0] != path:
            self.free()
            backend = "transformers" if self.looks_inside else self.options.backend
            found = Source(
                path,
                self.job.tokenizer,
                backend,
                self.options.dtype,
                self.options.rows_at_once,
                self.options.tensor_parallel_size,
                device=self.group.device,
                processes=self.group.count,
            )
            self._loaded = path, found
        return self._loaded[1]

    def draw(self, requests: Sequence[Request], how: Mapping[str, Any], path: str | None) -> Iterable[Response]:
        """Responses as they finish."""
        from qsft.evals.protocol import Sampling
        from qsft.evals.request import Request as Asked

        return self.source(path).sampler(Sampling(n=1, **how)).sample([Asked(*request) for request in requests])

    def inside(self) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
        """The model itself."""
        from qsft.evals.protocol import Sampling

        sampler: Any = self.source().sampler(Sampling())
        return sampler.model, sampler.tokenizer

    @property
    def context(self) -> int | None:
        """How many tokens the model can read."""
        from transformers import AutoConfig

        from qsft.evals.request import context_of

        return context_of(AutoConfig.from_pretrained(str(self.job.model.model_name_or_path)))

    def record(self) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        source = self.source()
        return {"name": source.name, **source.record()}

    def free(self) -> None:
        """Give the memory back."""
        import gc

        import torch

        self._loaded = None
        gc.collect()
        torch.cuda.empty_cache()


def train_round(models: Models, kept: Sequence[Kept], start: str | None, directory: Path) -> str:
    """The model of a next round: `start` (or the job's model) trained on the rows by the recipe's own settings."""
    model, done = directory / "model", directory / "done.json"
    if done.is_file():
        return str(model)
    if models.group.rank == 0:
        write(directory / "data", kept, {"round": directory.name})
    models.group.wait()
    models.free()
    values = {
        **models.job.recipe.values,
        "dataset": str(directory / "data"),
        "model_name_or_path": start or str(models.job.model.model_name_or_path),
        "output_dir": str(model),
    }
    for key in ("curate", "data_dir", "response", "sample_rows", "dataset_config", "dataset_revision", "dataset_split"):
        values.pop(key, None)
    values.setdefault("target", "sft")
    trainer = configure(replace(models.job.recipe, values=values)).trainer()
    trainer.train()
    trainer.save_model(str(model))
    trainer.accelerator.wait_for_everyone()
    if models.group.rank == 0:
        done.write_text("{}\n", encoding="utf-8")
    models.group.wait()
    return str(model)


@contextmanager
def verifier(name: str | None) -> Iterator[Verify]:
    """The evaluator's grading in processes of its own, or the user's `module:function`, called (response, row)."""
    if name is not None:
        function = load_function(name)
        yield lambda text, problem: bool(function(text, dict(problem.row)))
        return
    from qsft.evals.grade import Judges

    with Judges() as judges:
        yield lambda text, problem: judges.submit(text, problem.gold, options=problem.options)


def load_function(name: str) -> Callable[..., Any]:
    """The function that `module:function` names; the current directory is searched too."""
    module, colon, attribute = name.partition(":")
    if not colon or not attribute:
        raise ValueError(f"--verifier {name!r} is not module:function, such as checks:is_right for checks.py here.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--verifier {name!r} cannot be loaded: {error}.") from error
    return found  # type: ignore[no-any-return]
