"""A trained run knows its recipe: `recipe.json` beside the model says what made it and how it is to be measured."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.evals.comparison import run_names
from qsft.evals.tasks import find_tasks
from qsft.files import read_json, write_json
from qsft.fingerprints import digest_json
from qsft.recipe.recipe_file import packaged_recipes, read_recipe

if TYPE_CHECKING:
    from qsft.recipe.job import Job

RECORD = "recipe.json"
PLAIN = ("--target", "sft")  # a target that no recipe measures otherwise than its student
BASE = "base"  # in the place of a target or a run: the student as it was before training


def record_recipe(job: "Job") -> None:
    target = {"target": job.args.target, "target_kwargs": job.args.target_kwargs or {}}
    measured = {"eval_tasks": job.settings.eval_tasks, "eval_protocol": job.settings.eval_protocol}
    values = {**job.recipe.values, "model_name_or_path": job.student}  # of a world it is not the recipe that names it
    write_json(Path(job.recipe.output_dir, RECORD), {"recipe": job.recipe.name, **target, **measured, "values": values})


def recorded(directory: Path) -> dict[str, Any]:
    """What the run in a directory, or the run of a checkpoint, says of itself; nothing if no recipe made it."""
    place = directory.parent if directory.name.startswith("checkpoint-") else directory
    file = place / RECORD
    return read_json(file, "Delete it, and say --tasks and --protocol.") if file.exists() else {}


def evaluation_of(model: str, tasks: str | None, protocol: str | None) -> tuple[str, str, str | None]:
    """Model, tasks and protocol of an evaluation; what is given goes before what the run or the recipe says."""
    says: dict[str, Any] = {}
    if Path(model).is_dir():
        says = recorded(Path(model))
    elif is_recipe(model):
        recipe = read_recipe(model)
        if not Path(recipe.output_dir).is_dir():
            raise FileNotFoundError(f"{recipe.output_dir} does not exist yet. Run `qsft train {model}` first.")
        model, says = recipe.output_dir, {**recipe.values, **recorded(Path(recipe.output_dir))}
    return model, *_measured(says, tasks, protocol)


def _measured(says: Mapping[str, Any], tasks: str | None, protocol: str | None) -> tuple[str, str | None]:
    own = says.get("eval_tasks")
    if protocol is None and own and (tasks is None or _kinds(tasks) == _kinds(own)):
        protocol = says.get("eval_protocol")
    return tasks or own or "math", protocol


def _kinds(tasks: str) -> set[bool]:
    """Whether tasks are multiple choice: a protocol for the one kind says nothing of the other."""
    return {task.multiple_choice for task in find_tasks(tasks)}


def is_recipe(name: str) -> bool:
    """Whether a name is a recipe's: a YAML file, or a recipe that comes with the package."""
    return name.endswith((".yaml", ".yml")) or name in {path.stem for path in packaged_recipes()}


def evaluation_directory(model: str) -> Path:
    """Beside a model on disk; under evals/ for one of the hub."""
    return Path(model) / "eval" if Path(model).is_dir() else Path("evals") / model.replace("/", "--")


def base_words(values: Mapping[str, Any], words: Sequence[str]) -> list[str]:
    """The words of `qsft eval` that measure a recipe's student untrained, into a place that all its recipes share.
    Options among `words` replace what the recipe says, and make another place."""
    student = values.get("model_name_or_path")
    if student is None:
        raise ValueError(f"{BASE} is the untrained student, and this recipe names none. Set model_name_or_path.")
    given = dict(pairwise(words))
    tasks, protocol = _measured(values, given.get("--tasks"), given.get("--protocol"))
    asked = list(words) if "--tasks" in given else ["--tasks", tasks, *words]
    asked += ["--protocol", protocol] if protocol and "--protocol" not in given else []
    directory = evaluation_directory(student)
    if words or Path(student).is_dir():
        directory = Path("evals", f"{Path(student).name}-{digest_json([student, asked])[:8]}")
    return [student, *asked, "--output_dir", str(directory)]


def student_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a run's recipe says about its student, without what it says about the run's target alone."""
    if not is_recipe(record["recipe"]):
        return {**record["values"], **record}
    plain = read_recipe(record["recipe"], PLAIN).values
    return {**record["values"], "eval_tasks": plain.get("eval_tasks"), "eval_protocol": plain.get("eval_protocol")}


def evaluations_of(runs: Sequence[str]) -> dict[str, Path]:
    """What `qsft compare` is given, by the name of each: an evaluation, a directory that has one inside, or base."""
    others = [_evaluation_in(Path(run)) for run in runs if run != BASE]
    # Beside base a run is called by its own name, not by its eval/
    called = [path.parent if path.name == "eval" else path for path in others] if BASE in runs else others
    named = iter(zip(run_names(called) if called else (), others))
    return dict((BASE, base_evaluation(others)) if run == BASE else next(named) for run in runs)


def _evaluation_in(path: Path) -> Path:
    inside = path / "eval"
    return inside if (inside / "grades").is_dir() and not (path / "grades").is_dir() else path


def base_evaluation(runs: Sequence[Path]) -> Path:
    """Where the student of some runs was evaluated untrained: by their sweep, else by its recipe's tasks."""
    places = [run.parent if run.name == "eval" else run for run in runs]
    for place in places:
        sweep = place.parent / "sweep.json"
        words = read_json(sweep, "Delete it.").get(BASE, {}).get("eval") if sweep.is_file() else None
        if words:
            return Path(words[-1])
    records = [record for record in map(recorded, places) if record]
    students = {record["values"].get("model_name_or_path") for record in records}
    if len(students) != 1:
        named = ", ".join(sorted(map(str, students))) or "none of them, since no recipe trained them"
        raise ValueError(f"{BASE} is the untrained student of all runs, but they name {named}. Give its evaluation.")
    words = base_words(student_of(records[0]), ())
    if not (Path(words[-1]) / "grades").is_dir():
        raise FileNotFoundError(f"{BASE} was not evaluated yet. Run `qsft eval {shlex.join(words)}` once.")
    return Path(words[-1])
