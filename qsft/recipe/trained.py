"""A trained run knows its recipe: `recipe.json` beside the model says what made it and how it is to be measured."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsft.files import read_json, write_json
from qsft.recipe.recipe_file import packaged_recipes, read_recipe

if TYPE_CHECKING:
    from qsft.recipe.job import Job

RECORD = "recipe.json"


def record_recipe(job: "Job") -> None:
    """Write what the run is made of into its directory."""
    recipe, settings, args = job.recipe, job.settings, job.args
    record = {
        "recipe": recipe.name,
        "target": args.target,
        "target_kwargs": args.target_kwargs or {},
        "eval_tasks": settings.eval_tasks,
        "eval_protocol": settings.eval_protocol,
        "values": dict(recipe.values),
    }
    write_json(Path(str(args.output_dir), RECORD), record)


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
            raise FileNotFoundError(
                f"the recipe {model} trains {recipe.output_dir}, which does not exist yet. Run `qsft train {model}` "
                "first, or name the trained model's directory."
            )
        model, says = recipe.output_dir, {**recipe.values, **recorded(Path(recipe.output_dir))}
    own = says.get("eval_tasks")
    if protocol is None and own and (tasks is None or _kinds(tasks) == _kinds(own)):
        protocol = says.get("eval_protocol")
    return model, tasks or own or "math", protocol


def _kinds(tasks: str) -> set[bool]:
    """Whether tasks are multiple choice: a protocol for the one kind says nothing of the other."""
    from qsft.evals.tasks import find_tasks

    return {task.multiple_choice for task in find_tasks(tasks)}


def is_recipe(name: str) -> bool:
    """Whether a name is a recipe's: a YAML file, or a recipe that comes with the package."""
    return name.endswith((".yaml", ".yml")) or name in {path.stem for path in packaged_recipes()}


def evaluation_directory(model: str) -> Path:
    """Beside a model on disk; under evals/ for one of the hub."""
    return Path(model) / "eval" if Path(model).is_dir() else Path("evals") / model.replace("/", "--")
