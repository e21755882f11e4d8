"""What one evaluation measures: the model, the tasks, the protocol, further settings, and where the results go.

A request is resolved once, from what the user gave and what the run or the recipe declares. `argv()` is its command.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qsft.evals.tasks import find_tasks
from qsft.fingerprints import digest_json
from qsft.recipe.recipe_file import Recipe
from qsft.recipe.record import read_recipe_record
from qsft.redaction import redact_words
from qsft.run_directory import BASE, evaluation_directory

DEFAULT_TASKS = "math"
UNTRAINED = Path("evals")  # where models that no run here trained are evaluated


@dataclass(frozen=True)
class EvalRequest:
    """One evaluation.

    Args:
        model: directory or hub id.
        tasks: names of tasks, comma-separated.
        protocol: name of a protocol; None is the default of the kind of task.
        output_dir: where the results go.
        settings: further options of `qsft eval` by name; True stands for a flag.
    """

    model: str
    tasks: str
    protocol: str | None
    output_dir: Path
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def for_model(cls, model: str, given: Mapping[str, Any]) -> "EvalRequest":
        """Return the request of `qsft eval MODEL`; `given` are the options by name."""
        eval_tasks: str | None = None
        eval_protocol: str | None = None
        record = read_recipe_record(model) if Path(model).is_dir() else None
        if record is not None:
            eval_tasks = record.eval_tasks
            eval_protocol = record.eval_protocol
        default = evaluation_directory(model) if Path(model).is_dir() else UNTRAINED / model.replace("/", "--")
        return _resolve(model, given, eval_tasks, eval_protocol, default)

    @classmethod
    def for_trained_recipe(cls, recipe: Recipe, given: Mapping[str, Any]) -> "EvalRequest":
        """Return the request of `qsft eval RECIPE`: the model in the recipe's output directory.

        Raises:
            FileNotFoundError: it was not trained yet.
        """
        directory = Path(recipe.output_dir)
        if directory.is_dir() and read_recipe_record(directory) is not None:
            return cls.for_model(recipe.output_dir, given)
        if any(directory.glob("*config.json")):  # config.json, or adapter_config.json
            return cls.for_run(recipe, given)
        name = [] if recipe.path is None else [recipe.address]
        command = shlex.join(["qsft", "train", *name, *redact_words(recipe.overrides)])
        problem = "holds no model" if directory.is_dir() else "does not exist yet"
        raise FileNotFoundError(f"{recipe.output_dir} {problem}. Run `{command}` first.")

    @classmethod
    def for_run(cls, recipe: Recipe, given: Mapping[str, Any]) -> "EvalRequest":
        """Return the request that measures the model a recipe trains, by what the recipe declares."""
        tasks = recipe.values.get("eval_tasks")
        default = evaluation_directory(recipe.output_dir)
        return _resolve(recipe.output_dir, given, tasks, recipe.eval_protocol, default)

    @classmethod
    def for_untrained_student(cls, values: Mapping[str, Any], given: Mapping[str, Any]) -> "EvalRequest":
        """Return the request that measures a recipe's student before training.

        Recipes with the same student share the directory. Options in `given` replace what the recipe declares and
        have a directory of their own.

        Args:
            values: the values of the recipe.
            given: options of `qsft eval` by name.
        """
        student = values.get("model_name_or_path")
        if student is None:
            raise ValueError(
                f"{BASE!r} is the student before training, but the recipe names no student. Set model_name_or_path."
            )
        directory = UNTRAINED / student.replace("/", "--")
        request = _resolve(student, given, values.get("eval_tasks"), values.get("eval_protocol"), directory)
        if given or Path(student).is_dir():
            settings = [student, request.tasks, request.protocol, dict(request.settings)]
            directory = UNTRAINED / f"{Path(student).name}-{digest_json(settings)[:8]}"
            request = _resolve(student, given, values.get("eval_tasks"), values.get("eval_protocol"), directory)
        return request

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "EvalRequest":
        return cls(**{**content, "output_dir": Path(content["output_dir"])})

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "settings": dict(self.settings), "output_dir": str(self.output_dir)}

    def argv(self) -> list[str]:
        """The words after `qsft eval` that make this evaluation."""
        words = [self.model, "--tasks", self.tasks]
        if self.protocol is not None:
            words += ["--protocol", self.protocol]
        for name, value in self.settings.items():
            words.append(f"--{name}")
            if isinstance(value, list):
                words += map(str, value)
            elif value is not True:
                words.append(str(value))
        return [*words, "--output_dir", str(self.output_dir)]


def _resolve(
    model: str, given: Mapping[str, Any], eval_tasks: str | None, eval_protocol: str | None, output_dir: Path
) -> EvalRequest:
    """Put the given options before what the run or recipe declares.

    A declared protocol holds for the kind of task it was declared for: given medical tasks, a mathematics protocol
    does not apply.
    """
    settings = dict(given)
    tasks = settings.pop("tasks", None)
    protocol = settings.pop("protocol", None)
    output_dir = Path(settings.pop("output_dir", None) or output_dir)
    if protocol is None and eval_tasks is not None and (tasks is None or _task_kinds(tasks) == _task_kinds(eval_tasks)):
        protocol = eval_protocol
    return EvalRequest(model, tasks or eval_tasks or DEFAULT_TASKS, protocol, output_dir, settings)


def _task_kinds(tasks: str) -> set[bool]:
    """The kinds among some tasks: True for multiple choice, False for mathematics."""
    return {task.multiple_choice for task in find_tasks(tasks)}
