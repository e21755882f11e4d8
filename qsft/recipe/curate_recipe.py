"""`qsft curate`: run a data-level method over the data set of a recipe, without training on the result."""

from dataclasses import replace
from typing import Any

from qsft.processes import process_group
from qsft.recipe.curation import Curation
from qsft.recipe.job import configure, on_this_device
from qsft.recipe.job_data import load_student_tokenizer
from qsft.recipe.prepare import curate_job, make_models
from qsft.recipe.recipe_file import Recipe


def curate_recipe(recipe: Recipe, curation: Curation) -> dict[str, Any]:
    """Curate the rows that training the recipe would read, on all processes; return the manifest of the result."""
    values = {key: value for key, value in recipe.values.items() if key != "curate"}
    with process_group():
        job = make_models(configure(on_this_device(replace(recipe, values=values))))
        return curate_job(job, load_student_tokenizer(job), curation)
