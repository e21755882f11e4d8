"""The paper's effect at seed 0, its absence with clean demonstrations, its reversal with a wrong teacher."""

import json

import pytest
import torch
from safetensors.torch import load_file

from qsft.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    """All scenarios on one base, and the directory they are in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QSFT_CACHE", str(tmp_path_factory.mktemp("home")))
        out = tmp_path_factory.mktemp("scenarios")
        assert main(["demo", "--scenarios", "--output_dir", str(out), "--targets", "sft", "dft", "target_sft"]) == 0
        yield out


def averages_and_findings(out, scenario):
    results = json.loads((out / "results.json").read_text())["scenarios"][scenario]
    return {line["label"]: line["average"] for line in results["table"]}, " ".join(results["findings"])


def test_target_sft_is_first_by_more_than_three_points(scenarios):
    averages, text = averages_and_findings(scenarios, "right")
    assert averages.pop("Target-SFT") > max(averages.values()) + 3
    assert "Target-SFT beats" in text
    assert "Caution, seed" not in text


@pytest.mark.parametrize("scenario", ["wrong", "half-wrong"])
def test_a_wrong_teacher_makes_target_sft_lose(scenarios, scenario):
    averages, text = averages_and_findings(scenarios, scenario)
    assert averages["Target-SFT"] < averages["DFT"] - 3
    assert "Target-SFT loses to DFT" in text


def test_with_clean_demonstrations_sft_ties(scenarios):
    averages, text = averages_and_findings(scenarios, "clean")
    assert abs(averages["Target-SFT"] - averages["SFT"]) <= 3
    assert "Target-SFT and SFT tie" in text


def test_scenarios_share_one_table(scenarios):
    found = json.loads((scenarios / "results.json").read_text())["scenarios"]
    assert list(found) == ["right", "wrong", "half-wrong", "clean"]
    assert [one["settings"]["teacher"] for one in found.values()] == ["right", "wrong", "half", "right"]
    assert [one["settings"]["noise"] for one in found.values()] == [0.25, 0.25, 0.25, 0.0]
    page = (scenarios / "index.html").read_text()
    assert all(f'<th scope="col">{name}</th>' in page for name in found)
    assert (scenarios / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_a_method_without_a_teacher_is_trained_once_for_the_same_demonstrations(scenarios):
    trained = sorted(str(path.parent.relative_to(scenarios)) for path in scenarios.rglob("model.safetensors"))
    everywhere = [f"{scenario}/seed-0/target_sft-eta0.5" for scenario in ("clean", "half-wrong", "right", "wrong")]
    once = [f"{scenario}/seed-0/{name}" for scenario in ("clean", "right") for name in ("dft", "sft")]
    assert trained == sorted([*everywhere, *once])
    found = json.loads((scenarios / "results.json").read_text())["scenarios"]
    right, wrong, _, clean = (one["seeds"][0]["paths"]["SFT"] for one in found.values())
    assert right == wrong != clean


def test_the_recipe_trains_the_same_target_sft(scenarios, tmp_path):
    recipe = tmp_path / "recipe"
    cache = tmp_path / "cache"
    assert main(["train", "demo", "--output_dir", str(recipe), "--teacher_cache", str(cache)]) == 0
    ours = load_file(scenarios / "right" / "seed-0" / "target_sft-eta0.5" / "model.safetensors")
    theirs = load_file(recipe / "model.safetensors")
    assert theirs.keys() == ours.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name], weight, atol=1e-4, rtol=1e-3)
