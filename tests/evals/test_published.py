"""The paper's numbers: complete, under names that exist, with their oddities as noted."""

import json

import pytest

from qsft.evals.published import paper, published_setting, read_published
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
    sizes = {task.name: task.published_problems for task in GROUPS["medical"]}
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


@pytest.mark.parametrize(
    ("recipe", "target", "hparams", "row"),
    [
        ("numina_qwen_math_1p5b", "target_sft", {"eta": 0.2}, "Target-SFT (eta=0.2)"),
        ("numina_qwen_math_1p5b", "target_sft", {"eta": 0.5}, "Target-SFT"),
        ("numina_qwen_math_1p5b", "target_sft", {}, "Target-SFT"),
        ("numina_qwen_math_1p5b", "target_sft", {"eta": 1.0}, "Target-SFT (eta=1.0)"),
        ("numina_qwen_math_1p5b", "target_sft", {"eta": 0.3}, None),
        ("numina_qwen_math_1p5b", "target_sft", {"form": "reward"}, None),
        ("numina_qwen_math_1p5b", "target_sft_constant", {"c": 0.2}, None),
        ("numina_qwen_math_1p5b", "kd_hybrid", {"c": 0.5}, "Distill (c=0.5)"),
        ("numina_qwen_math_1p5b", "kd_hybrid", {"c": 1.0}, "Distill (c=1.0)"),
        ("numina_qwen_math_7b", "target_sft", {"eta": 0.2}, "Target-SFT"),  # the paper does not say which eta it is
        ("openr1_qwen_math_1p5b", "target_sft_constant", {}, "Constant branch (c=1.0)"),  # the default of c
        ("openr1_qwen_math_1p5b", "target_sft_constant", {"c": 0.2}, "Constant branch (c=0.2)"),
        ("openr1_qwen_math_1p5b", "target_sft_constant", {"c": 0.5}, "Constant branch (c=0.5)"),
        ("openr1_qwen_math_1p5b", "target_sft_constant", {"c": 0.3}, None),
        ("openr1_qwen_math_1p5b", "target_sft_mixture", {}, "Constant branch (c=0.5)"),  # the default of c
        ("openr1_qwen_math_1p5b", "target_sft_mixture", {"c": 1.0}, "Constant branch (c=1.0)"),
        ("openr1_qwen_math_1p5b", "base", {}, "Base"),
    ],
)
def test_each_run_has_the_row_of_its_own_hyper_parameters(recipe, target, hparams, row):
    assert published_setting(recipe).row_of(target, hparams) == row


def test_every_row_of_the_ablations_belongs_to_a_run():
    for ablation in paper()["ablations"].values():
        table = published_setting(ablation["recipe"])
        for row, method in ablation["methods"].items():
            found = table.row_of(method["target"], method["target_kwargs"])
            assert table.rows[found] == ablation["rows"][row]
        printed = [note for note in table.notes if "as the ablation table prints them" in note]
        new = [row for row in ablation["rows"] if row in table.rows and row not in paper()["methods"]]
        assert all(f"{row} {ablation['average'][row]}" in printed[0] for row in new)


def test_the_constant_branch_says_that_two_readings_are_possible():
    notes = published_setting("openr1_qwen_math_1p5b").notes
    assert any("target_sft_constant and target_sft_mixture" in note for note in notes)


def test_as_published_target_sft_wins_ten_of_ten_settings():
    best = {name: published_setting(name).best_row(list(one["rows"]["SFT"])) for name, one in SETTINGS.items()}
    assert set(best.values()) == {"Target-SFT"}
    assert len(best) == 10


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
