"""What recipes/demo.yaml reads from the demo, and that it describes the demo's own Target-SFT training."""

import json
import os
import subprocess
import sys

import pytest

from qsft.demo import kept
from qsft.demo.foundation import places, untrained
from qsft.demo.methods import METHODS
from qsft.demo.prepare import demo_models
from qsft.demo.scenario import Scenario, demonstrations
from qsft.demo.training import config_values, save
from qsft.demo.world import LENGTH, PROMPT_LENGTH
from qsft.recipe.recipe_file import read_recipe
from qsft.targets.view import IGNORED
from qsft.train.config import TargetSFTConfig

SILENT = {"logging_strategy", "disable_tqdm"}  # how a run talks, not what it learns


def test_the_recipe_trains_as_the_demo_does():
    recipe = read_recipe("demo")
    scenario = Scenario()
    target = next(method for method in METHODS if method.row == "target")
    ours = config_values(scenario.fine_tuning, scenario.seed, target=target.row, target_kwargs=target.hparams)
    values = recipe.part(TargetSFTConfig)
    assert {key: values[key] for key in ours if key not in SILENT} == {k: v for k, v in ours.items() if k not in SILENT}
    assert values["teacher_top_k"] == scenario.top_k
    assert recipe.settings.global_batch_size == scenario.fine_tuning.batch


def test_demonstrations_are_documents_whose_prompt_is_no_label():
    rows = demonstrations(Scenario())
    assert len(rows) == 5120
    first = rows[0]
    assert len(first["input_ids"]) == len(first["labels"]) == LENGTH
    assert first["labels"] == [IGNORED] * PROMPT_LENGTH + first["input_ids"][PROMPT_LENGTH:]
    assert sum(first["critical"]) == 3


def test_kept_models_are_found_without_building(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_HOME", str(tmp_path))
    models = places(Scenario(seed=5))
    for path in models:
        kept.keep(path, lambda directory: save(untrained(5), directory) or {})
    assert demo_models(5) == models
    assert json.loads((models.base / "config.json").read_text())["model_type"] == "llama"


def test_a_build_that_fails_is_an_error_not_a_wait(tmp_path, monkeypatch):
    home = tmp_path / "file"
    home.write_text("not a directory")
    monkeypatch.setenv("QSFT_HOME", str(home))
    with pytest.raises(ValueError, match="could not be built"):
        demo_models(0)


def test_importing_prepare_is_free():
    code = "import sys, qsft.demo.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
