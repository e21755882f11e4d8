"""curate(): one method over problems, written as a data set with a manifest; killed, it continues where it was.

A directory: settings.json, generations/<stage>.jsonl, then the rows as `save_to_disk` writes them and as rows.jsonl,
and last manifest.json, whose presence says that all is there.
"""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from qsft import __version__
from qsft.data.curate.methods import check_settings, find_method
from qsft.data.curate.problems import Problem
from qsft.data.curate.workshop import Kept, Workshop
from qsft.jsonl import write_json, write_lines

SETTINGS, MANIFEST, ROWS = "settings.json", "manifest.json", "rows.jsonl"
GENERATIONS, ROUNDS = "generations", "rounds"


def curate(
    method: str,
    settings: Mapping[str, Any],
    problems: Sequence[Problem],
    workshop: Workshop,
    out: Path,
    *,
    made_by: Mapping[str, Any],
    fresh: bool = False,
) -> dict[str, Any]:
    """The manifest of the data set that `method` makes of `problems` in `out`; a finished one is left as it is.

    made_by    what else the result depends on (model, data, verifier): to continue with another one is refused
    """
    settings = check_settings(method, settings)
    record = {"method": method, "settings": settings, **made_by, "problems": _digest(problems)}
    agree(out, record, workshop, fresh)
    if not (out / MANIFEST).is_file():
        kept = find_method(method)(problems, workshop, **settings)
        if not kept:
            raise ValueError(f"{method} kept nothing of {len(problems):,} rows: {dict(workshop.counts)}.")
        if workshop.ledger.group.rank == 0:
            write(out, kept, {**record, "qsft": __version__, **describe(kept, problems, workshop)})
    workshop.ledger.group.wait()
    return dict(json.loads((out / MANIFEST).read_text(encoding="utf-8")))


def agree(out: Path, record: Mapping[str, Any], workshop: Workshop, fresh: bool) -> None:
    """Refuse to continue what other settings began; write down those of this run."""
    group = workshop.ledger.group
    if group.rank == 0:
        if fresh:
            workshop.ledger.remove()
            shutil.rmtree(out / ROUNDS, ignore_errors=True)
            for name in (MANIFEST, SETTINGS):
                (out / name).unlink(missing_ok=True)
        if (out / SETTINGS).is_file():
            _refuse_change(json.loads((out / SETTINGS).read_text(encoding="utf-8")), record, out)
        elif out.is_dir() and any(out.iterdir()) and not fresh:
            raise ValueError(f"{out} is not empty and no curated data set. Give another --out.")
        write_json(out / SETTINGS, record)
    group.wait()


def write(out: Path, kept: Sequence[Kept], record: Mapping[str, Any]) -> None:
    """Write a data set that describes itself: rows twice (arrow, JSON lines), and last the manifest."""
    from datasets import Dataset

    rows = [one.row() for one in kept]
    Dataset.from_list(rows).save_to_disk(str(out))
    write_lines(out / ROWS, rows)
    form = "tokens" if kept[0].document is not None else kept[0].problem.form.name
    write_json(out / MANIFEST, {**record, "form": form})


def describe(kept: Sequence[Kept], problems: Sequence[Problem], workshop: Workshop) -> dict[str, Any]:
    """How much was drawn, verified and kept."""
    counts = {"problems": len(problems), **workshop.counts, "rows": len(kept)}
    covered = {one.problem.id for one in kept if one.origin != "demonstration"}
    rates = {"problems with a response by the method": len(covered) / len(problems)}
    if workshop.counts["responses"]:
        rates["responses that verify"] = workshop.counts["right"] / workshop.counts["responses"]
        rates["generated tokens per problem"] = workshop.counts["generated tokens"] / len(problems)
    return {"counts": counts, "rows by origin": dict(Counter(one.origin for one in kept)), "rates": rates}


def _refuse_change(old: Mapping[str, Any], new: Mapping[str, Any], out: Path) -> None:
    changed = [f"{key} was {old.get(key)!r}, is {new[key]!r}" for key in new if old.get(key) != new[key]]
    if changed:
        raise ValueError(
            f"{out} was begun with other settings: {'; '.join(changed)}. Give another --out, or --fresh to delete what "
            "is there and start again."
        )


def _digest(problems: Sequence[Problem]) -> str:
    """Stands for what is asked and what counts as right."""
    digest = blake2b(digest_size=16)
    for problem in problems:
        digest.update(f"{problem.id}\0{problem.gold}\0{problem.response}\0".encode())
    return digest.hexdigest()
