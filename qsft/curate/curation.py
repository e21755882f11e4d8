"""curate(): run one method over a data set's rows and write the result as a data set; a killed curation continues.

settings.json               everything that the result depends on
generations/<stage>.jsonl   the records of the work, appended as they are made
rounds/                     models trained between rounds
rows.jsonl, *.arrow         the resulting rows, twice
manifest.json               what made them and what was counted; written last, so its presence means complete
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from qsft import __version__
from qsft.curate.context import CurationContext, CurationInputs, Verify
from qsft.curate.exercises import CuratedRow, Exercise
from qsft.curate.registry import DEMONSTRATION, Need, Options, find_method, make_settings
from qsft.curate.row_formats import TOKENS
from qsft.data.sources import CURATED_MANIFEST as MANIFEST
from qsft.evals.grading.pool import Judges, check_math_verify
from qsft.files import TEMPORARY, read_json, write_json, write_lines
from qsft.ledger import SETTINGS, Ledger, Record, changed_settings, move_aside
from qsft.processes import Group
from qsft.user_functions import import_function

ROWS = "rows.jsonl"
GENERATIONS = "generations"
ROUNDS = "rounds"
REMEDY = "Choose another --output_dir, or pass --overwrite, which moves what is there aside and starts again."


def curate(
    method: str,
    settings: Mapping[str, Any],
    inputs: CurationInputs,
    output_dir: Path,
    options: Options | None = None,
    watch: Callable[[Record], object] | None = None,
) -> dict[str, Any]:
    """Run a method and return the manifest of the data set that it made; a complete one is left as it is.

    Args:
        method: name of the method.
        settings: its settings that differ from their defaults.
        watch: called with each new record, instead of a progress bar.

    Raises:
        ValueError: for wrong settings, if output_dir was started with other settings, or if no row was kept.
    """
    chosen = find_method(method)
    method_settings = make_settings(chosen, settings)
    options = options or Options()
    group = Group()
    if Need.VERIFIER in chosen.needs and options.verifier is None:
        check_math_verify()  # before anything is generated
    context = CurationContext(chosen, inputs, options, Ledger(output_dir / GENERATIONS, group), watch=watch)
    exercises = context.exercises(inputs.rows, inputs.settings)
    record = context.settings_record(method_settings, exercises)
    start(output_dir, record, group, options.overwrite)
    if not (output_dir / MANIFEST).is_file():
        context.train = partial(train_round, context, output_dir / ROUNDS)
        with make_verifier(options.verifier) as context.verify:
            rows = chosen.run(exercises, context, method_settings)
        if not rows:
            raise ValueError(f"{method} kept nothing of {len(exercises):,} rows: {dict(context.counts)}.")
        if group.rank == 0:
            manifest = {**record, "qsft": __version__, **describe(rows, exercises, context.counts)}
            write_dataset(output_dir, rows, manifest)
    group.wait()
    context.free()  # a training may follow in this process
    return read_json(output_dir / MANIFEST, REMEDY)


@contextmanager
def make_verifier(name: str | None) -> Iterator[Verify]:
    """The grading of `qsft.grade` in other processes, or the user's `module:function`, called (response, row)."""
    if name is None:
        with Judges() as judges:
            yield lambda text, exercise: judges.submit(text, exercise.gold, options=exercise.options)
        return
    function = import_function(name, "--verifier")

    def verify(text: str, exercise: Exercise) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(text, dict(exercise.row)))
        except Exception as error:
            future.set_exception(error)
        return future

    yield verify


def train_round(
    context: CurationContext, rounds: Path, rows: Sequence[CuratedRow], initial_model: str | None, number: int
) -> str:
    """Train on the rows of a round, unless that is done, and return the directory of the new model."""
    inputs = context.inputs
    group = context.ledger.group
    directory = rounds / str(number)
    trained = directory / "model"
    done = directory / "done.json"
    if done.is_file():
        return str(trained)
    assert inputs.train is not None
    if group.rank == 0:
        shutil.rmtree(trained, ignore_errors=True)  # a training that was killed
        write_dataset(directory / "data", rows, {"round": directory.name})
    group.wait()
    context.free()
    inputs.train(directory / "data", initial_model or str(inputs.model), trained)
    if group.rank == 0:
        write_json(done, {})
    group.wait()
    return str(trained)


def start(output_dir: Path, record: Mapping[str, Any], group: Group, overwrite: bool) -> None:
    """Record the settings of a curation; ValueError if existing work has other settings."""
    if overwrite and group.rank == 0 and output_dir.is_dir() and is_curation(output_dir):
        move_aside(output_dir, sorted(output_dir.iterdir()))
    group.wait()
    has_work = contains_work(output_dir)
    if has_work:
        check_unchanged(output_dir, record)
    else:
        check_empty(output_dir)
    group.wait()  # no process writes while another one still reads
    if not has_work and group.rank == 0:
        write_json(output_dir / SETTINGS, record)
    group.wait()


def is_curation(output_dir: Path) -> bool:
    return contains_work(output_dir) or (output_dir / SETTINGS).is_file()


def contains_work(output_dir: Path) -> bool:
    """Whether something was computed that belongs to the recorded settings."""
    records = (output_dir / GENERATIONS).glob("*.jsonl")
    has_records = any(path.stat().st_size for path in records)
    return has_records or (output_dir / MANIFEST).is_file() or (output_dir / ROUNDS).is_dir()


def check_empty(output_dir: Path) -> None:
    """Raise ValueError for a directory with files that no curation wrote.

    A curation that was killed before its first record leaves its settings, an empty directory, and temporary files.
    """
    if not output_dir.is_dir():
        return
    for path in output_dir.iterdir():
        if path.name not in (SETTINGS, GENERATIONS) and path.suffix != TEMPORARY:
            raise ValueError(f"{output_dir} is not empty and is not a curated data set. Choose another --output_dir.")


def check_unchanged(output_dir: Path, record: Mapping[str, Any]) -> None:
    """Raise ValueError if the work in a directory was started with other settings."""
    if not (output_dir / SETTINGS).is_file():
        raise ValueError(f"{output_dir} has generations but no {SETTINGS} with the settings that made them. {REMEDY}")
    recorded = read_json(output_dir / SETTINGS, REMEDY)
    if recorded.get("method") != record["method"]:
        changed = changed_settings(recorded, {"method": record["method"]})
    else:
        changed = changed_settings(recorded.get("settings", {}), record["settings"])
        changed += changed_settings(recorded, record, allowed={"settings"})
    if changed:
        raise ValueError(f"{output_dir} was started with other settings: {'; '.join(changed)}. {REMEDY}")


def write_dataset(directory: Path, curated: Sequence[CuratedRow], manifest: Mapping[str, Any]) -> None:
    """Write the rows twice (arrow, JSON lines), and last the manifest."""
    rows = [one.row for one in curated]
    Dataset.from_list(rows).save_to_disk(str(directory))
    write_lines(directory / ROWS, rows)
    is_tokenized = {"input_ids", "labels"} <= rows[0].keys()
    row_format = TOKENS if is_tokenized else curated[0].exercise.format
    write_json(directory / MANIFEST, {**manifest, "format": row_format})


def describe(curated: Sequence[CuratedRow], exercises: Sequence[Exercise], counts: Counter[str]) -> dict[str, Any]:
    """Counts and rates for the manifest."""
    covered = {one.exercise.id for one in curated if one.origin != DEMONSTRATION}
    rates = {"problems with a response by the method": len(covered) / len(exercises)}
    if counts["responses"]:
        rates["responses that verify"] = counts["correct"] / counts["responses"]
        rates["generated tokens per problem"] = counts["generated tokens"] / len(exercises)
    return {
        "counts": {"problems": len(exercises), **counts, "rows": len(curated)},
        "rows by origin": dict(Counter(one.origin for one in curated)),
        "rates": rates,
    }
