"""The paper's effect at seed 0, its absence with clean demonstrations, its reversal with a wrong teacher."""

import json

import pytest
import torch
from safetensors.torch import load_file

from qsft.cli import main

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory):
    """One base for all three worlds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QSFT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


def demo(tmp_path, *words):
    assert main(["demo", "--out", str(tmp_path), *words]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    return {line["label"]: line["average"] for line in results["table"]}, " ".join(results["findings"])


def test_target_sft_is_first_by_more_than_three_points(tmp_path):
    averages, said = demo(tmp_path)
    ours = averages.pop("Target-SFT")
    averages.pop("KD sharpened")  # a control, which ties
    assert ours > max(averages.values()) + 3
    assert "Target-SFT beats" in said


def test_a_wrong_teacher_makes_target_sft_lose_and_the_demo_says_so(tmp_path):
    averages, said = demo(tmp_path, "--wrong-teacher", "--targets", "sft", "dft", "target")
    assert averages["Target-SFT"] < averages["SFT(p)"] - 3
    assert "Target-SFT loses to SFT(p)" in said


def test_with_clean_demonstrations_sft_ties_and_the_demo_says_so(tmp_path):
    averages, said = demo(tmp_path, "--noise", "0", "--targets", "sft", "target")
    assert abs(averages["Target-SFT"] - averages["SFT"]) <= 3
    assert "Target-SFT and SFT tie" in said


def test_the_recipe_trains_the_same_target_sft(tmp_path):
    demo(tmp_path, "--targets", "target")
    recipe, cache = tmp_path / "recipe", tmp_path / "cache"
    assert main(["train", "demo", "--output_dir", str(recipe), "--teacher_cache", str(cache)]) == 0
    theirs, ours = (load_file(path / "model.safetensors") for path in (recipe, tmp_path / "seed-0" / "target-eta0.5"))
    assert theirs.keys() == ours.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name], weight, atol=1e-4, rtol=1e-3)
