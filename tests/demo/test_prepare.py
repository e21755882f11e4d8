"""What recipes/demo.yaml reads from the demo, and that it describes the demo's own Target-SFT training."""

import json
import os
import subprocess
import sys

import pytest

from qsft.demo import store
from qsft.demo.data import demonstrations
from qsft.demo.fit import config_values
from qsft.demo.methods import METHODS
from qsft.demo.models import base_path, teacher_path, untrained
from qsft.demo.models import save as save_model
from qsft.demo.prepare import demo_models
from qsft.demo.settings import Settings
from qsft.demo.world import LENGTH, PROMPT_LENGTH
from qsft.recipe.recipe_file import read_recipe
from qsft.targets.view import IGNORED
from qsft.train.config import TargetSFTConfig

SILENT = {"logging_strategy", "disable_tqdm"}  # how a run talks, not what it learns


def test_the_recipe_trains_as_the_demo_does():
    recipe = read_recipe("demo")
    settings = Settings()
    target = next(method for method in METHODS if method.row == "target")
    ours = config_values(settings.fine_tuning, settings.seed, target=target.row, target_kwargs=target.hparams)
    values = recipe.part(TargetSFTConfig)
    assert {key: values[key] for key in ours if key not in SILENT} == {k: v for k, v in ours.items() if k not in SILENT}
    assert values["teacher_top_k"] == settings.top_k
    assert recipe.settings.global_batch_size == settings.fine_tuning.batch


def test_demonstrations_are_documents_whose_prompt_is_no_label():
    rows = demonstrations(Settings())
    assert len(rows) == 5120
    first = rows[0]
    assert len(first["input_ids"]) == len(first["labels"]) == LENGTH
    assert first["labels"] == [IGNORED] * PROMPT_LENGTH + first["input_ids"][PROMPT_LENGTH:]
    assert sum(first["critical"]) == 3


def test_kept_models_are_found_without_building(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_HOME", str(tmp_path))
    settings = Settings(seed=5)
    for path in (base_path(settings), teacher_path(settings)):
        store.keep(path, {}, lambda directory: save_model(untrained(5), directory))
    assert demo_models(5) == (base_path(settings), teacher_path(settings))
    assert json.loads((base_path(settings) / "config.json").read_text())["model_type"] == "llama"


def test_a_build_that_fails_is_an_error_not_a_wait(tmp_path, monkeypatch):
    home = tmp_path / "file"
    home.write_text("not a directory")
    monkeypatch.setenv("QSFT_HOME", str(home))
    with pytest.raises(ValueError, match="could not be built"):
        demo_models(0)


def test_importing_prepare_is_free():
    code = "import sys, qsft.demo.prepare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False).returncode == 0
