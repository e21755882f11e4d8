"""The demo's models: found by recipes, trained with the settings of recipes/demo.yaml."""

import json
from io import StringIO

import pytest
from rich.console import Console

from qsft.demo import kept
from qsft.demo.documents import demonstrations
from qsft.demo.foundation import demo_models, model_paths, untrained
from qsft.demo.methods import METHODS
from qsft.demo.scenario import Scenario
from qsft.demo.task import LENGTH, PROMPT_LENGTH
from qsft.demo.training import Phases, config_values, save
from qsft.recipe.recipe_file import read_recipe
from qsft.targets.view import IGNORED
from qsft.train.config import TargetSFTConfig

SILENT = {"logging_strategy", "disable_tqdm"}  # how a run talks, not what it learns


def test_the_recipe_trains_as_the_demo_does():
    recipe = read_recipe("demo")
    scenario = Scenario()
    target = next(method for method in METHODS if method.target_name == "target_sft")
    ours = config_values(scenario.fine_tuning, scenario.seed, target.target_name, target.hyper_parameters)
    values = recipe.part(TargetSFTConfig)
    assert {key: values[key] for key in ours if key not in SILENT} == {k: v for k, v in ours.items() if k not in SILENT}
    assert values["teacher_top_k"] == scenario.top_k
    assert recipe.settings.global_batch_size == scenario.fine_tuning.batch


def test_the_prompt_of_a_demonstration_is_not_a_label():
    rows = demonstrations(Scenario())
    assert len(rows) == 5120
    first = rows[0]
    assert len(first["input_ids"]) == len(first["labels"]) == LENGTH
    assert first["labels"] == [IGNORED] * PROMPT_LENGTH + first["input_ids"][PROMPT_LENGTH:]
    assert sum(first["critical"]) == 3


def test_kept_models_are_found_without_training(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path))
    models = model_paths(Scenario(seed=5))
    for path in models:
        kept.keep(path, lambda directory: save(untrained(5), directory) or {})
    assert demo_models(5) == models
    assert json.loads((models.base / "config.json").read_text())["model_type"] == "llama"


def test_a_training_process_that_fails_raises(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path))
    monkeypatch.setattr("sys.executable", "false")  # instead of Python: it exits with code 1
    with pytest.raises(ValueError, match="could not be trained"):
        demo_models(0)


def test_the_seconds_of_a_phase_that_is_repeated_add_up(monkeypatch):
    seconds = iter([3.0, 4.0])
    monkeypatch.setattr("qsft.progress.Progress.seconds", property(lambda progress: next(seconds)))
    monkeypatch.setattr("qsft.progress.Progress.__exit__", lambda progress, *error: None)  # it reads the seconds too
    phases = Phases(Console(file=StringIO()))
    for _ in range(2):
        with phases.phase("pretrain the base", 1, "steps"):
            pass
    assert phases.seconds == {"pretrain the base": 7.0}
