"""A data-level method on a recipe's data: the sampler, the grader, the model and the trainer that it works with.

qsft curate rft RECIPE --n 8                 calls curate_job
curate: {"method": "rft", "n": 8}            in a recipe calls it before training, and trains on what it made
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.data.curate.methods import VERIFYING, check_settings
from qsft.data.curate.run import GENERATIONS, ROUNDS, curate
from qsft.data.curate.workshop import Verify, Workshop
from qsft.data.sources import find_source
from qsft.recipe.curate_tools import Models, Options, train_round, verifier
from qsft.recipe.job import DEMO, Job
from qsft.recipe.keys import ORIGIN, RecipeSettings

if TYPE_CHECKING:
    from datasets import Dataset

    from qsft.data.curate.forms import Form
    from qsft.data.curate.problems import Problem

LOOKS_INSIDE = ("grape", "critical")  # need the model itself, so no engine that only draws
GOLDS = {"numina": "boxed", "openr1": "boxed", "m23k": "answer_letter", DEMO: "answer"}
DEMO_VERIFIER = "qsft.demo.curated:verify"


def curate_job(job: Job, method: str, settings: Mapping[str, Any], out: Path, options: Options) -> dict[str, Any]:
    """The manifest of the data set that a method makes of a job's training rows, in `out`."""
    from qsft.evals.model_under_test import Processes

    settings = check_settings(method, settings)
    group = Processes()
    reader = Reader(job, method, options)
    problems = reader.problems
    models = Models(job, options, group, looks_inside=method in LOOKS_INSIDE)
    with verifier(reader.verifier) as verify:
        workshop = make_workshop(models, verify, out, reader)
        made_by = {**models.record(), **reader.record()}
        manifest = curate(method, settings, problems, workshop, out, made_by=made_by, fresh=options.fresh)
    models.free()  # a training may follow in this process
    return manifest


def curated_settings(job: Job) -> RecipeSettings:
    """The data settings of a job whose recipe has the key `curate`; its rows are curated now, unless they were."""
    wanted = dict(job.settings.curate or {})
    if "method" not in wanted:
        raise ValueError(f'curate={wanted} names no method. Write for example {{"method": "rft", "n": 8}}.')
    out = Path(wanted.pop("out", None) or Path(str(job.args.output_dir), "curated"))
    options = Options(**{item.name: wanted.pop(item.name) for item in fields(Options) if item.name in wanted})
    curate_job(job, wanted.pop("method"), wanted, out, options)
    origin: dict[str, Any] = {"dataset": str(out), **dict.fromkeys(ORIGIN, None), "dataset_split": "train"}
    return replace(job.settings, **origin, curate=None)


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
        settings = self.job.settings
        # Training would refuse `prompt` for a data set that TRL renders; here it may be how a text column is asked.
        loaded = settings if find_source(settings.dataset) else replace(settings, prompt=RecipeSettings.prompt)
        chosen = self.job.load(loaded).manifest["row_ids"][: self.options.limit]
        rows = self.job.stored_rows(settings).select(chosen)
        if settings.dataset == DEMO:
            from qsft.demo.curated import with_answers

            rows = with_answers(rows)
        return self.read(rows, settings)

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
