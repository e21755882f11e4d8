"""Recipes of 7-8B models name the backend that they are made for, and say so when they are started on one GPU."""

import pytest

from qsft.recipe.job import configure
from qsft.recipe.model_shapes import SHAPES, known_config
from qsft.recipe.recipe_file import packaged_recipes, read_recipe
from qsft.recipe.relaunch import find_accelerate_config
from qsft.recipe.run import launch_hint

PAPERS = [file.stem for file in packaged_recipes() if file.stem != "demo"]
LARGE = [name for name in PAPERS if name.endswith(("_7b", "_8b"))]


def hint(recipe, *words, processes=1):
    job = configure(read_recipe(recipe, words), processes)
    job.args.use_cpu = False  # as on a GPU; planning for a number of processes sets it
    return launch_hint(job)


def test_the_recipes_are_those_of_the_large_models():
    large = {name for name in SHAPES if known_config(name).hidden_size >= 3584}
    assert {read_recipe(name).values["model_name_or_path"] for name in LARGE} == large


@pytest.mark.parametrize("recipe", LARGE)
def test_a_large_model_on_one_gpu_suggests_several(recipe):
    backend = read_recipe(recipe).settings.launch
    assert find_accelerate_config(backend).is_file()
    message = hint(recipe)
    assert f"--accelerate_config {backend}" in message
    assert "--dtype bfloat16" in message
    gigabytes = 16 * (8.03 if "8b" in recipe else 7.616)
    assert f"about {gigabytes:.0f} GB" in message


def test_bf16_weights_need_half_and_are_not_suggested_again():
    message = hint(LARGE[0], "--dtype", "bfloat16")
    assert "about 64 GB" in message
    assert "--dtype" not in message


@pytest.mark.parametrize(
    ("recipe", "words", "processes"),
    [(LARGE[0], (), 8), (LARGE[0], ("--use_peft", "true"), 1), ("numina_qwen_math_1p5b", (), 1)],
    ids=["several GPUs", "an adapter", "a small model"],
)
def test_no_hint_where_it_fits(recipe, words, processes):
    assert hint(recipe, *words, processes=processes) is None
