"""The demo's models: kept whole or not at all, found by recipes, trained as recipes/demo.yaml says."""

import json

import pytest

from qsft.demo import foundation
from qsft.demo.foundation import demo_models, places, untrained
from qsft.demo.scenario import METHODS, Scenario, config_values, demonstrations, save
from qsft.demo.world import LENGTH, PROMPT_LENGTH
from qsft.recipe.recipe_file import read_recipe
from qsft.targets.view import IGNORED
from qsft.train.config import TargetSFTConfig

SILENT = {"logging_strategy", "disable_tqdm"}  # how a run talks, not what it learns


def test_the_recipe_trains_as_the_demo_does():
    recipe = read_recipe("demo")
    scenario = Scenario()
    target = next(method for method in METHODS if method.row == "target_sft")
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
        foundation.keep(path, lambda directory: save(untrained(5), directory) or {})
    assert demo_models(5) == models
    assert json.loads((models.base / "config.json").read_text())["model_type"] == "llama"


def test_a_build_that_fails_is_an_error_not_a_wait(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_HOME", str(tmp_path))
    monkeypatch.setattr("sys.executable", "false")  # in the place of Python: it ends at once, and not well
    with pytest.raises(ValueError, match="could not be built"):
        demo_models(0)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_HOME", str(tmp_path))
    return tmp_path / "demo"


def fill(directory):
    (directory / "weights").write_bytes(b"123456")
    return {"steps": 7}


def kept(ingredients=None):
    path = foundation.place_of("thing", ingredients or {"a": 1})
    foundation.keep(path, fill)
    return path


def test_what_is_kept_is_intact_and_remembers_what_was_said(home):
    path = kept()
    assert path.parent == home
    assert foundation.is_intact(path)
    assert json.loads((path / foundation.RECORD).read_text())["remembered"] == {"steps": 7}


def test_other_ingredients_have_another_place(home):
    assert foundation.place_of("thing", {"a": 1}) != foundation.place_of("thing", {"a": 2})
    assert foundation.place_of("thing", {"a": 1, "b": 2}) == foundation.place_of("thing", {"b": 2, "a": 1})


@pytest.mark.parametrize("harm", ["flip", "remove", "record", "no record"])
def test_damage_is_seen_and_repaired(home, harm):
    path = kept()
    match harm:
        case "flip":
            (path / "weights").write_bytes(b"123457")
        case "remove":
            (path / "weights").unlink()
        case "record":
            (path / foundation.RECORD).write_text("[]")
        case "no record":
            (path / foundation.RECORD).unlink()
    assert not foundation.is_intact(path)
    assert foundation.is_intact(kept())


def test_a_failure_leaves_nothing_behind(home):
    def fail(directory):
        fill(directory)
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        foundation.keep(foundation.place_of("thing", {"a": 1}), fail)
    assert list(home.iterdir()) == []


def test_whoever_comes_second_accepts_what_is_there(home):
    path = kept()
    foundation.keep(path, fill)
    assert foundation.is_intact(path)
    assert list(home.iterdir()) == [path]
