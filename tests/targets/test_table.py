"""The generated table and `qsft targets`."""

import pytest

from qsft import TARGETS, LossTarget, make_target
from qsft.cli import run_command
from qsft.targets import table


def test_every_target_has_a_summary_a_formula_and_a_reference():
    for row in table.entries():
        assert all(row[name] for name in ("title", "reference", "γ", "scale"))


def test_describe_says_what_a_target_needs():
    text = table.describe("target_sft")
    assert "π_θ^0.5·π_T^0.5" in text
    assert "needs            teacher" in text
    assert "eta=0.5" in text


def test_describe_suggests_a_name():
    with pytest.raises(ValueError, match="Did you mean 'gem'"):
        table.describe("gemm")


def test_formula_of_own_targets():
    assert table.formula(make_target("dft")) == "γ = p_y, π̃ = π_θ, scale = 1"
    assert table.formula(make_target("target_sft")) == "γ = p_y, π̃ ∝ π_θ^0.5·π_T^0.5, scale = 1"
    assert table.formula(make_target("sft")) == "γ = 1, π̃ = –, scale = 1"
    assert "my_loss" in table.formula(LossTarget(my_loss))


def my_loss(logits, labels):
    return logits[:, 0]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], list(TARGETS)),
        (["target_sft"], ["π_T^0.5", "qsft train RECIPE --target target_sft"]),
        (["--markdown"], ["| `sft` | 1 |"]),
    ],
)
def test_command_prints_it(argv, words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run_command(["targets", *argv]) == 0
    out = capsys.readouterr().out
    for word in words:
        assert word in out
