"""Published numbers to put beside measured ones: the paper's tables, which ship with the package, or a file.

The numbers are in per cent as they are printed; averages are recomputed from the cells, since the printed ones are not
always their mean (the notes say where).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from qsft.files import read_json
from qsft.targets.did_you_mean import did_you_mean

SHAPE = '{"rows": {"SFT": {"math500": 61.2, …}, …}}, accuracies in per cent under the names of tasks'
Cells = dict[str, float]  # task → accuracy, a share


@dataclass(frozen=True)
class Published:
    """A table of accuracies by row and task, in per cent, and what a reader should know about it.

    methods    which target a row is: {"target": name, "target_kwargs": {…}}, as far as it is known
    """

    rows: Mapping[str, Mapping[str, float]]
    methods: Mapping[str, Mapping[str, Any]]
    notes: Sequence[str] = ()

    def shares(self, tasks: Sequence[str]) -> dict[str, Cells]:
        """The cells of these tasks as shares, rows without any left out; `macro` where no task is missing."""
        found = {row: {task: cells[task] / 100 for task in tasks if task in cells} for row, cells in self.rows.items()}
        for cells in found.values():
            if len(cells) == len(tasks):
                cells["macro"] = sum(cells[task] for task in tasks) / len(tasks)
        return {row: cells for row, cells in found.items() if cells}

    def row_of(self, target: str, hparams: Mapping[str, Any]) -> str | None:
        """The row that a target is; hyper-parameters that the table does not name may be anything."""
        for row, method in self.methods.items():
            named = method.get("target_kwargs", {})
            if method["target"] == target and all(hparams.get(key, value) == value for key, value in named.items()):
                return row
        return None


@cache
def paper() -> dict[str, Any]:
    """Everything that ships: the paper, its methods, ten settings, two ablations, notes."""
    return dict(json.loads(files("qsft.evals").joinpath("published.json").read_text(encoding="utf-8")))


def published_setting(recipe: str) -> Published | None:
    """What the paper prints about a recipe, its rows of the ablation table too; None for a recipe that is not its."""
    found = paper()["settings"].get(recipe)
    if found is None:
        return None
    rows, methods, notes = dict(found["rows"]), dict(paper()["methods"]), [*paper()["notes"][found["kind"]]]
    for ablation in paper()["ablations"].values():
        if ablation["recipe"] == recipe:
            rows |= {row: cells for row, cells in ablation["rows"].items() if cells not in found["rows"].values()}
            methods |= {row: method for row, method in ablation["methods"].items() if row not in methods}
    return Published(rows, methods, [*notes, *paper()["notes"]["eta"]])


def read_published(name: str | Path) -> Published:
    """The numbers of a recipe of the paper (by name or file), or of a JSON file of that shape."""
    found = published_setting(Path(name).stem if str(name).endswith((".yaml", ".yml")) else str(name))
    if found is not None:
        return found
    if not Path(name).is_file():
        known = list(paper()["settings"])
        raise FileNotFoundError(
            f"--paper {name}: no such file, and no setting of the paper.{did_you_mean(str(name), known)} The paper's "
            f"settings are {', '.join(known)}; a file reads {SHAPE}."
        )
    try:
        stored = read_json(Path(name), "")
        rows = {row: {task: float(value) for task, value in cells.items()} for row, cells in stored["rows"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{name} is not a table of published numbers. It should read {SHAPE}.") from error
    return Published(rows, stored.get("methods", {}), stored.get("notes", ()))
