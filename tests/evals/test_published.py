"""The paper's numbers: complete, under names that exist, with their oddities as noted."""

import json

import pytest

from qsft.evals.comparison import paper, published_setting, read_published
from qsft.evals.tasks import GROUPS
from qsft.recipe.recipe_file import packaged_recipes
from qsft.targets.registry import make_target

SETTINGS = paper()["settings"]


def test_every_recipe_has_its_five_rows_over_all_its_tasks():
    assert set(SETTINGS) <= {path.stem for path in packaged_recipes()}
    assert len(SETTINGS) == 10
    for setting in SETTINGS.values():
        tasks = {task.name for task in GROUPS[setting["kind"]]}
        assert list(setting["rows"]) == list(setting["average"]) == list(paper()["methods"])
        assert all(set(cells) == tasks for cells in setting["rows"].values())


def test_methods_are_targets():
    methods = [*paper()["methods"].values()]
    methods += [one for ablation in paper()["ablations"].values() for one in ablation["methods"].values()]
    for method in methods:
        if method["target"] != "base":
            make_target(method["target"], **method.get("target_kwargs", {}))


def test_the_oddities_are_as_noted():
    def mean(cells):
        return sum(cells.values()) / len(cells)

    off = {
        (name, row): abs(mean(cells) - setting["average"][row])
        for name, setting in SETTINGS.items()
        for row, cells in setting["rows"].items()
    }
    math = [off[key] for key in off if SETTINGS[key[0]]["kind"] == "math"]
    medical = [off[key] for key in off if SETTINGS[key[0]]["kind"] == "medical"]
    assert sum(value > 0.011 for value in math) == 29
    assert 0.44 < max(math) < 0.45
    assert max(medical) < 0.011
    sizes = {task.name: task.rows for task in GROUPS["medical"]}
    for setting in SETTINGS.values():
        for cells in setting["rows"].values() if setting["kind"] == "medical" else ():
            for task, value in cells.items():
                right = round(value * sizes[task] / 100)
                assert round(100 * right / sizes[task], 2) == pytest.approx(value, abs=0.0101), (task, value)


def test_rows_by_target_and_shares():
    table = published_setting("numina_qwen_math_1p5b")
    assert table.row_of("dft", {}) == "SFT (p)"
    assert table.row_of("kd_hybrid", {}) == table.row_of("kd_hybrid", {"c": 0.8}) == "Distill"
    assert table.row_of("kd_hybrid", {"c": 0.2}) == "Distill (c=0.2)"
    assert table.row_of("gem", {}) is None
    cells = table.shares(["math500", "aime24"])["Target-SFT"]
    assert cells == pytest.approx({"math500": 0.702, "aime24": 0.0896, "macro": 0.3958})
    assert table.shares(["mine"]) == {}
    assert "macro" not in table.shares(["math500", "mine"])["SFT"]


def test_a_file_a_recipe_and_what_is_neither(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"rows": {"SFT": {"sums": 50}}}))
    assert read_published(file).shares(["sums"]) == {"SFT": {"sums": 0.5, "macro": 0.5}}
    assert read_published("recipes/m23k_qwen_7b.yaml") == published_setting("m23k_qwen_7b")
    file.write_text('{"rows": {"SFT": [1]}}')
    with pytest.raises(ValueError, match="not a table of published numbers"):
        read_published(file)
    with pytest.raises(FileNotFoundError, match="Did you mean 'm23k_qwen_7b'"):
        read_published("m23k_qwen_7B")
