"""The numbers that the paper prints, and which run each of them belongs to.

Averages are recomputed from the cells, since the printed ones are not always their mean; the notes say where.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from qsft.files import read_json
from qsft.targets.registry import TARGETS
from qsft.validation import did_you_mean

SHAPE = '{"rows": {"SFT": {"math500": 61.2, …}, …}}, accuracies in percent under the names of tasks'
FREE_HPARAMS = ("tail",)  # how the teacher's tail is treated, which the paper does not say


class Method(NamedTuple):
    """How a model was trained: its target (`base` for the untrained student) and the hyper-parameters that were set."""

    target: str
    hparams: Mapping[str, Any]


@dataclass(frozen=True)
class Published:
    """A table of accuracies in percent, by row and task.

    Args:
        methods: the method of a row, where it is one of ours: {"target": name, "target_kwargs": {…}, "any": [names of
            hyper-parameters that may have any value]}. Hyper-parameters that are not named have their defaults.
        notes: what a reader has to know about the table.
    """

    rows: Mapping[str, Mapping[str, float]]
    methods: Mapping[str, Mapping[str, Any]]
    notes: Sequence[str] = ()

    def shares(self, tasks: Sequence[str]) -> dict[str, dict[str, float]]:
        """The cells of these tasks as shares, with `macro` where no task is missing; rows without any are left out."""
        found = {}
        for row, cells in self.rows.items():
            shares = {task: cells[task] / 100 for task in tasks if task in cells}
            if len(shares) == len(tasks):
                shares["macro"] = sum(shares.values()) / len(tasks)
            if shares:
                found[row] = shares
        return found

    def row_of(self, target: str, hparams: Mapping[str, Any]) -> str | None:
        """The row of a target with these hyper-parameters; those that are not given have their defaults."""
        given = {**_default_hparams(target), **hparams}
        target = paper()["other_readings"].get(target, target)
        for row, method in self.methods.items():
            if method["target"] != target:
                continue
            free = {*method.get("any", ()), *FREE_HPARAMS}
            expected = {**_default_hparams(target), **method.get("target_kwargs", {})}
            if all(given.get(name) == value for name, value in expected.items() if name not in free):
                return row
        return None

    def best_row(self, tasks: Sequence[str]) -> str | None:
        """The row with the highest average over these tasks; None if a row lacks one, or for a tie."""
        averages = {row: cells["macro"] for row, cells in self.shares(tasks).items() if "macro" in cells}
        if not averages:
            return None
        highest = max(averages.values())
        best = [row for row, average in averages.items() if average == highest]
        return best[0] if len(best) == 1 else None


def _default_hparams(target: str) -> dict[str, Any]:
    """The default of each hyper-parameter of a target; none for the untrained student."""
    if target not in TARGETS:
        return {}
    return TARGETS[target].hyper_parameters


@cache
def paper() -> dict[str, Any]:
    """The content of published.json: the paper, its methods, ten settings, two ablations, notes."""
    return dict(json.loads(files("qsft.evals").joinpath("published.json").read_text(encoding="utf-8")))


def published_setting(recipe: str) -> Published | None:
    """What the paper prints about a recipe, the rows of its ablations included; None for any other recipe."""
    setting = paper()["settings"].get(recipe)
    if setting is None:
        return None
    rows = dict(setting["rows"])
    methods = {**paper()["methods"], **setting.get("methods", {})}
    notes = [*paper()["notes"][setting["kind"]], *paper()["notes"]["eta"]]
    for ablation in paper()["ablations"].values():
        if ablation["recipe"] != recipe:
            continue
        # The ablation repeats rows of the main table under other names.
        new = {row: cells for row, cells in ablation["rows"].items() if cells not in setting["rows"].values()}
        rows.update(new)
        methods.update({row: ablation["methods"][row] for row in new})
        printed = ", ".join(f"{row} {ablation['average'][row]}" for row in new)
        notes += [f"Averages as the ablation table prints them: {printed}.", *paper()["notes"]["ablation"]]
        notes += ablation.get("notes", ())
    return Published(rows, methods, notes)


def read_published(name: str | Path) -> Published:
    """The numbers of a recipe of the paper (by name or file), or of a JSON file of that shape.

    Raises:
        FileNotFoundError: if there is neither such a setting of the paper nor such a file.
        ValueError: if the file is not a table of published numbers.
    """
    recipe = Path(name).stem if str(name).endswith((".yaml", ".yml")) else str(name)
    found = published_setting(recipe)
    if found is not None:
        return found
    if not Path(name).is_file():
        known = list(paper()["settings"])
        raise FileNotFoundError(
            f"--paper {name}: no such file, and not a setting of the paper.{did_you_mean(str(name), known)} The "
            f"paper's settings are {', '.join(known)}; a file reads {SHAPE}."
        )
    try:
        stored = read_json(Path(name), "")
        rows = {row: {task: float(value) for task, value in cells.items()} for row, cells in stored["rows"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{name} is not a table of published numbers. It should read {SHAPE}.") from error
    return Published(rows, stored.get("methods", {}), stored.get("notes", ()))
