"""curate(): one method over a data set's rows, written as a data set with a manifest; killed, it continues.

A directory: settings.json, generations/<stage>.jsonl, then the rows as `save_to_disk` writes them and as rows.jsonl,
and last manifest.json, whose presence says that all is there. It belongs to its settings once it holds work.
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
from qsft.curate.catalogue import Options, check_settings, find_method
from qsft.curate.context import CurationContext, Material
from qsft.curate.exercises import Exercise, Kept, load_function
from qsft.evals.grading.pool import Judges
from qsft.files import TEMPORARY, read_json, write_json, write_lines
from qsft.ledger import Ledger, Record
from qsft.processes import Group

SETTINGS, MANIFEST, ROWS = "settings.json", "manifest.json", "rows.jsonl"
GENERATIONS, ROUNDS = "generations", "rounds"
REMEDY = "Give another --out, or --fresh to delete what is there and start again."


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
    context = CurationContext(method, material, options, Ledger(out / GENERATIONS, group), watch=watch)
    exercises = context.exercises(material.rows, material.settings)
    record = context.record(settings, exercises)
    agree(out, record, group, options.fresh)
    if not (out / MANIFEST).is_file():
        context.train = partial(train_round, context, out / ROUNDS)
        with verifier(options.verifier) as context.verify:
            kept = find_method(method)(exercises, context, **settings)
        if not kept:
            raise ValueError(f"{method} kept nothing of {len(exercises):,} rows: {dict(context.counts)}.")
        if group.rank == 0:
            write(out, kept, {**record, "qsft": __version__, **describe(kept, exercises, context.counts)})
    group.wait()
    context.free()  # a training may follow in this process
    return read_json(out / MANIFEST, REMEDY)


@contextmanager
def verifier(name: str | None) -> Iterator[Callable[[str, Exercise], "Future[Any]"]]:
    """The evaluator's grading in processes of its own, or the user's `module:function`, called (response, row)."""
    if name is None:
        with Judges() as judges:
            yield lambda text, exercise: judges.submit(text, exercise.gold, options=exercise.options)
        return
    function = load_function("--verifier", name)

    def verify(text: str, exercise: Exercise) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(text, dict(exercise.row)))
        except Exception as error:
            future.set_exception(error)
        return future

    yield verify


def train_round(context: CurationContext, rounds: Path, kept: Sequence[Kept], start: str | None, number: int) -> str:
    material, group, directory = context.material, context.ledger.group, rounds / str(number)
    trained, done = directory / "model", directory / "done.json"
    if done.is_file():
        return str(trained)
    assert material.train is not None
    if group.rank == 0:
        shutil.rmtree(trained, ignore_errors=True)  # what a killed training left
        write(directory / "data", kept, {"round": directory.name})
    group.wait()
    context.free()
    material.train(directory / "data", start or str(material.model), trained)
    if group.rank == 0:
        write_json(done, {})
    group.wait()
    return str(trained)


def agree(out: Path, record: Mapping[str, Any], group: Group, fresh: bool) -> None:
    """Refuse to continue what was started with different settings, once something was computed with them."""
    if fresh and group.rank == 0:
        for name in (GENERATIONS, ROUNDS):
            shutil.rmtree(out / name, ignore_errors=True)
        (out / MANIFEST).unlink(missing_ok=True)
    group.wait()
    records, left = (out / GENERATIONS).glob("*.jsonl"), out.iterdir() if out.is_dir() else ()
    bound = (out / MANIFEST).is_file() or (out / ROUNDS).is_dir() or any(path.stat().st_size for path in records)
    if bound:
        refuse_change(out, record)
    # A start that was killed before its first record leaves nothing but these.
    elif not fresh and any(path.name not in (SETTINGS, GENERATIONS) and path.suffix != TEMPORARY for path in left):
        raise ValueError(f"{out} is not empty and is not a curated data set. Give another --out.")
    group.wait()  # nobody writes while another still looks
    if not bound and group.rank == 0:
        write_json(out / SETTINGS, record)
    group.wait()


def refuse_change(out: Path, new: Mapping[str, Any]) -> None:
    if not (out / SETTINGS).is_file():
        raise ValueError(f"{out} holds generations but no {SETTINGS} that says what made them. {REMEDY}")
    old = read_json(out / SETTINGS, REMEDY)
    changed = [f"{key} was {old.get(key)!r}, is {new[key]!r}" for key in new if old.get(key) != new[key]]
    if changed:
        raise ValueError(f"{out} was started with different settings: {'; '.join(changed)}. {REMEDY}")


def write(out: Path, kept: Sequence[Kept], record: Mapping[str, Any]) -> None:
    """Write a data set that describes itself: rows twice (arrow, JSON lines), and last the manifest."""
    rows = [one.row for one in kept]
    Dataset.from_list(rows).save_to_disk(str(out))
    write_lines(out / ROWS, rows)
    form = "tokens" if rows[0].keys() >= {"input_ids", "labels"} else kept[0].exercise.form
    write_json(out / MANIFEST, {**record, "form": form})


def describe(kept: Sequence[Kept], exercises: Sequence[Exercise], counted: Counter[str]) -> dict[str, Any]:
    counts = {"problems": len(exercises), **counted, "rows": len(kept)}
    covered = {one.exercise.id for one in kept if one.origin != "demonstration"}
    rates = {"problems with a response by the method": len(covered) / len(exercises)}
    if counted["responses"]:
        rates["responses that verify"] = counted["right"] / counted["responses"]
        rates["generated tokens per problem"] = counted["generated tokens"] / len(exercises)
    return {"counts": counts, "rows by origin": dict(Counter(one.origin for one in kept)), "rates": rates}
