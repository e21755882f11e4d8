"""A trained run, and what its recipe says about measuring it."""

from pathlib import Path

from qsft.recipe.recipe_file import packaged_recipes, read_recipe


def evaluation_of(model: str, tasks: str | None, protocol: str | None) -> tuple[str, str, str | None]:
    """Model, tasks and protocol of an evaluation; a recipe names its own, what is given goes before it."""
    if not Path(model).is_dir() and is_recipe(model):
        recipe = read_recipe(model)
        if not Path(recipe.output_dir).is_dir():
            raise FileNotFoundError(
                f"the recipe {model} trains {recipe.output_dir}, which does not exist yet. Run `qsft train {model}` "
                "first, or name the trained model's directory."
            )
        values, model = recipe.values, recipe.output_dir
        tasks, protocol = tasks or values.get("eval_tasks"), protocol or values.get("eval_protocol")
    return model, tasks or "math", protocol


def is_recipe(name: str) -> bool:
    """Whether a name is a recipe's: a YAML file, or a recipe that comes with the package."""
    return name.endswith((".yaml", ".yml")) or name in {path.stem for path in packaged_recipes()}


def evaluation_directory(model: str) -> Path:
    """Beside a model on disk; under evals/ for one of the hub."""
    return Path(model) / "eval" if Path(model).is_dir() else Path("evals") / model.replace("/", "--")
