"""recipe.json: the record beside a trained model of the recipe that made it and of how it is evaluated."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qsft.files import read_json, write_json
from qsft.redaction import redact
from qsft.run_directory import RECIPE_RECORD, run_of


@dataclass(frozen=True)
class RecipeRecord:
    """The recipe that a run was started with.

    Args:
        recipe: name of the recipe, or "run" for a training given by options alone.
        target: name of the target.
        target_kwargs: hyper-parameters of the target that were set.
        eval_tasks: what `qsft eval` measures, if the recipe says so.
        eval_protocol: how `qsft eval` measures this run: the protocol of its target where the recipe has one.
        values: every value of the recipe, with the name of the student in `model_name_or_path`.
    """

    recipe: str
    target: str
    target_kwargs: Mapping[str, Any]
    eval_tasks: str | None
    eval_protocol: str | None
    values: Mapping[str, Any]

    @property
    def student(self) -> str | None:
        """The model before training."""
        return self.values.get("model_name_or_path")

    def write(self, directory: str | Path) -> None:
        write_json(Path(directory, RECIPE_RECORD), redact(asdict(self)))


def read_recipe_record(path: str | Path) -> RecipeRecord | None:
    """Return the record of the run in a directory, or of the run that a checkpoint or an evaluation belongs to.

    None where no recipe made the run.

    Raises:
        ValueError: the file is damaged.
    """
    file = run_of(path) / RECIPE_RECORD
    if not file.is_file():
        return None
    remedy = "Delete it, and give --tasks and --protocol to `qsft eval`."
    content = read_json(file, remedy)
    try:
        return RecipeRecord(**content)
    except TypeError:
        raise ValueError(f"{file} is not a record that `qsft train` writes. {remedy}") from None
