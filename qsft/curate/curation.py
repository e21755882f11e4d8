"""curate(): one method over a data set's rows, written as a data set with a manifest; killed, it continues.

A directory: settings.json, generations/<stage>.jsonl, then the rows as `save_to_disk` writes them and as rows.jsonl,
and last manifest.json, whose presence says that all is there. It belongs to its settings once it holds work.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from qsft import __version__
from qsft.curate.context import CurationContext, Kept, Verify
from qsft.curate.exercises import Exercise, find_gold, load_function, read_exercises
from qsft.curate.forms import Form, Pairs, find_form
from qsft.curate.methods import LOOKS_INSIDE, VERIFYING, check_settings, find_method
from qsft.curate.options import Options
from qsft.data.read import column_names
from qsft.data.sources import DataSettings, find_source
from qsft.evals.model_under_test import ModelUnderTest
from qsft.evals.request import context_of
from qsft.files import TEMPORARY, read_json, write_json, write_lines
from qsft.fingerprints import digest_json
from qsft.ledger import Ledger, Record
from qsft.processes import Group

SETTINGS, MANIFEST, ROWS = "settings.json", "manifest.json", "rows.jsonl"
GENERATIONS, ROUNDS = "generations", "rounds"
REMEDY = "Give another --out, or --fresh to delete what is there and start again."


@dataclass(frozen=True)
class Material:
    """What is curated, and by which model: filled in by whoever knows the recipe.

    rows      the rows that training would have seen
    other     the stored rows of another data set
    train     (directory of rows, model to start from, directory of the new one): trains by the recipe's settings
    training  those settings, for the record
    """

    rows: Dataset
    settings: DataSettings
    model: str | PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    other: Callable[[str], tuple[Dataset, DataSettings]] | None = None
    train: Callable[[Path, str, Path], None] | None = None
    training: Mapping[str, Any] = field(default_factory=dict)


def curate(
    method: str,
    settings: Mapping[str, Any],
    material: Material,
    out: Path,
    options: Options | None = None,
    watch: Callable[[Record], object] | None = None,
) -> dict[str, Any]:
    """The manifest of the data set that `method` makes of the material in `out`; a finished one is left as it is."""
    settings, options, group = check_settings(method, settings), options or Options(), Group()
    reader, model = Reader(method, material, options), Loaded(method, material, options, group)
    exercises = reader.exercises(material.rows, material.settings)
    record = {
        "method": method,
        "settings": settings,
        **model.record(),
        **reader.record(),
        "problems": _asked(exercises),
    }
    agree(out, record, group, options.fresh)
    if not (out / MANIFEST).is_file():
        with verifier(options.verifier) as verify:
            context = CurationContext(
                Ledger(out / GENERATIONS, group),
                model.load,
                verify,
                needs_gold=reader.needs_gold,
                context=context_of(model.load().config),
                read=reader.other,
                train=lambda kept, start, number: train_round(material, model, kept, start, out / ROUNDS / str(number)),
                bind=lambda: bind(out, record),
                watch=watch,
            )
            kept = find_method(method)(exercises, context, **settings)
        if not kept:
            raise ValueError(f"{method} kept nothing of {len(exercises):,} rows: {dict(context.counts)}.")
        if group.rank == 0:
            write(out, kept, {**record, "qsft": __version__, **describe(kept, exercises, context.counts)})
    group.wait()
    model.free()  # a training may follow in this process
    return read_json(out / MANIFEST, REMEDY)


@dataclass(frozen=True)
class Reader:
    """Rows as exercises, each with its gold answer where one is needed."""

    method: str
    material: Material
    options: Options

    @property
    def needs_gold(self) -> bool:
        """Whether a problem without a gold answer cannot be verified."""
        return self.options.verifier is None and self.method in VERIFYING

    def exercises(self, rows: Dataset, settings: DataSettings) -> list[Exercise]:
        source = find_source(settings)
        wanted = self.options.gold or (source.gold if source else None)
        told = self.needs_gold or self.method == "star"
        gold = find_gold(column_names(rows), wanted) if told else lambda row, response: None
        return read_exercises(rows, self.form(rows, settings), gold)

    def other(self, dataset: str) -> list[Exercise]:
        """The exercises of another data set, by the name or path `dataset` would have in a recipe."""
        assert self.material.other is not None
        return self.exercises(*self.material.other(dataset))

    def form(self, rows: Dataset, settings: DataSettings) -> Form:
        source, tokenizer = find_source(settings), self.material.tokenizer
        if source is not None:
            response = settings.response or source.default_response
            return Pairs(tokenizer, lambda row: source.demonstration(row, response), settings.prompt)
        columns = {"question": self.options.question_column, "response": self.options.response_column}
        return find_form(rows.column_names, tokenizer, **columns, ask=settings.prompt)

    def record(self) -> dict[str, Any]:
        """Where the exercises come from and who verifies."""
        settings = self.material.settings
        place = {"dataset": settings.dataset, "data_dir": settings.data_dir, "split": settings.dataset_split}
        judged_by = self.options.verifier or "qsft.evals.grade:grade"
        found = {"data": place, "verifier": judged_by if self.method in VERIFYING else None}
        # Rounds train with the recipe's values, so a star that was started with others is another star.
        return {**found, "training": dict(self.material.training)} if self.method == "star" else found


class Loaded:
    """The material's model and those of later rounds, one at a time in memory."""

    def __init__(self, method: str, material: Material, options: Options, group: Group) -> None:
        self.material, self.options, self.group = material, options, group
        self.backend = "transformers" if method in LOOKS_INSIDE else options.backend
        self._path: str | PreTrainedModel | None = None

    def load(self, path: str | None = None) -> ModelUnderTest:
        """The model at a path, or the material's own; loading one drops the other."""
        wanted = path or self.material.model
        if self._path is None or self._path != wanted:
            self.free()
            options = self.options
            self._path, self._model = (
                wanted,
                ModelUnderTest(
                    wanted,
                    self.material.tokenizer,
                    self.backend,
                    options.dtype,
                    options.rows_at_once,
                    options.tensor_parallel_size,
                    device=self.group.device,
                    processes=self.group.count,
                ),
            )
        return self._model

    def record(self) -> dict[str, Any]:
        """What must be the same for a run to be continued."""
        return {"name": self.load().name, **self.load().record()}

    def free(self) -> None:
        """Give the memory back."""
        import gc

        import torch

        self._path = self._model = None  # type: ignore[assignment]
        gc.collect()
        torch.cuda.empty_cache()


@contextmanager
def verifier(name: str | None) -> Iterator[Verify]:
    """The evaluator's grading in processes of its own, or the user's `module:function`, called (response, row)."""
    if name is not None:
        function = load_function("--verifier", name)
        yield lambda text, exercise: bool(function(text, dict(exercise.row)))
        return
    from qsft.evals.grade import Judges

    with Judges() as judges:
        yield lambda text, exercise: judges.submit(text, exercise.gold, options=exercise.options)


def train_round(material: Material, model: Loaded, kept: Sequence[Kept], start: str | None, directory: Path) -> str:
    """The model of a next round: `start` (or the material's model) trained on the rows."""
    trained, done = directory / "model", directory / "done.json"
    if done.is_file():
        return str(trained)
    assert material.train is not None
    if model.group.rank == 0:
        shutil.rmtree(trained, ignore_errors=True)  # what a killed training left
        write(directory / "data", kept, {"round": directory.name})
    model.group.wait()
    model.free()
    material.train(directory / "data", start or str(material.model), trained)
    if model.group.rank == 0:
        write_json(done, {})
    model.group.wait()
    return str(trained)


def agree(out: Path, record: Mapping[str, Any], group: Group, fresh: bool) -> None:
    """Refuse to continue what was started with different settings; nothing is bound before work exists."""
    if fresh and group.rank == 0:
        for name in (GENERATIONS, ROUNDS):
            shutil.rmtree(out / name, ignore_errors=True)
        for name in (MANIFEST, SETTINGS):
            (out / name).unlink(missing_ok=True)
    group.wait()
    if holds_work(out):
        _refuse_change(out, record)
    elif not fresh and out.is_dir() and any(not _is_ours(path) for path in out.iterdir()):
        raise ValueError(f"{out} is not empty and no curated data set. Give another --out.")
    group.wait()  # nobody writes while another still looks


def holds_work(out: Path) -> bool:
    """Whether something was computed here that other settings must not take for theirs."""
    records = (out / GENERATIONS).glob("*.jsonl")
    return (out / MANIFEST).is_file() or (out / ROUNDS).is_dir() or any(path.stat().st_size for path in records)


def _is_ours(path: Path) -> bool:
    """Whether a file or folder is what a start leaves that was killed before its first record."""
    return path.name in (SETTINGS, GENERATIONS) or path.suffix == TEMPORARY


def bind(out: Path, record: Mapping[str, Any]) -> None:
    """Write down whose the directory is. Every process may be the first, and all of them write the same."""
    if not holds_work(out):
        write_json(out / SETTINGS, record)


def write(out: Path, kept: Sequence[Kept], record: Mapping[str, Any]) -> None:
    """Write a data set that describes itself: rows twice (arrow, JSON lines), and last the manifest."""
    rows = [one.row() for one in kept]
    Dataset.from_list(rows).save_to_disk(str(out))
    write_lines(out / ROWS, rows)
    form = "tokens" if kept[0].document is not None else kept[0].exercise.form.name
    write_json(out / MANIFEST, {**record, "form": form})


def describe(kept: Sequence[Kept], exercises: Sequence[Exercise], counted: Counter[str]) -> dict[str, Any]:
    """How much was drawn, verified and kept."""
    counts = {"problems": len(exercises), **counted, "rows": len(kept)}
    covered = {one.exercise.id for one in kept if one.origin != "demonstration"}
    rates = {"problems with a response by the method": len(covered) / len(exercises)}
    if counted["responses"]:
        rates["responses that verify"] = counted["right"] / counted["responses"]
        rates["generated tokens per problem"] = counted["generated tokens"] / len(exercises)
    return {"counts": counts, "rows by origin": dict(Counter(one.origin for one in kept)), "rates": rates}


def _refuse_change(out: Path, new: Mapping[str, Any]) -> None:
    if not (out / SETTINGS).is_file():
        raise ValueError(f"{out} holds generations but no {SETTINGS} that says what made them. {REMEDY}")
    old = read_json(out / SETTINGS, REMEDY)
    changed = [f"{key} was {old.get(key)!r}, is {new[key]!r}" for key in new if old.get(key) != new[key]]
    if changed:
        raise ValueError(f"{out} was started with different settings: {'; '.join(changed)}. {REMEDY}")


def _asked(exercises: Sequence[Exercise]) -> str:
    """Stands for what is asked and what counts as right."""
    return digest_json([[one.id, str(one.gold), one.response] for one in exercises])
