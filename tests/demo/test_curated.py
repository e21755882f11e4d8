"""The data-level methods on the synthetic task."""

import json

import pytest

from qsft.cli import main
from qsft.demo.curated import SETTINGS, other_demonstrations
from qsft.demo.documents import demonstrations
from qsft.demo.methods import DATA_LEVEL_METHODS, METHODS, find_data_level_methods
from qsft.demo.scenario import Scenario
from qsft.demo.task import EOS, WORDS, ClockProblem, answer, given_answer, verify


def words_of(row):
    return [WORDS[token] for token, label in zip(row["input_ids"], row["labels"]) if label != -100]


@pytest.fixture(scope="module")
def rows():
    return demonstrations(Scenario().shortened())


def test_answers_are_the_problems_own(rows):
    for row in rows:
        problem = ClockProblem.from_document(row["input_ids"])
        assert answer(row) == problem.answer
        assert [WORDS[token] for token in row["input_ids"]][: len(problem.prompt)] == problem.prompt
        words = words_of(row)
        assert verify(" ".join(words[:-1]), row) == (given_answer(words) == problem.answer)


def test_other_demonstrators_solve_the_same_problems_and_slip(rows):
    others = other_demonstrations(rows, Scenario())
    assert all(len(texts) == 3 and EOS not in " ".join(texts) for texts in others)
    right = [verify(text, row) for row, texts in zip(rows, others) for text in texts]
    assert 0.2 < sum(right) / len(right) < 0.8


def test_methods_by_name():
    assert find_data_level_methods(["rft,star", "critical"]) == (
        DATA_LEVEL_METHODS[0],
        DATA_LEVEL_METHODS[1],
        DATA_LEVEL_METHODS[3],
    )
    assert {method.curate for method in DATA_LEVEL_METHODS} == set(SETTINGS)
    assert len({method.slug for method in (*METHODS, *DATA_LEVEL_METHODS)}) == len(METHODS) + len(DATA_LEVEL_METHODS)
    for name in ("rtf", "self_distill"):
        with pytest.raises(ValueError, match=rf"{name!r}. Choose from rft, star, grape, critical"):
            find_data_level_methods([name])


def test_a_smoke_test_has_nothing_to_curate(tmp_path, capsys):
    assert main(["demo", "--quick", "--methods", "rft", "--output_dir", str(tmp_path)]) == 2
    assert "never answers right" in capsys.readouterr().err


@pytest.mark.slow
def test_each_method_makes_what_its_definition_says_and_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "home"))
    names = [str(method.curate) for method in DATA_LEVEL_METHODS]
    assert main(["demo", "--targets", "sft", "--methods", *names, "--output_dir", str(tmp_path)]) == 0
    table = {line["label"]: line["average"] for line in json.loads((tmp_path / "results.json").read_text())["table"]}
    assert {method.label for method in DATA_LEVEL_METHODS} <= set(table)
    made = {}
    for method in DATA_LEVEL_METHODS:
        lines = (tmp_path / "seed-0" / f"{method.slug}-data" / "rows.jsonl").read_text().splitlines()
        made[method.curate] = [json.loads(line) for line in lines]

    def right(row):
        return given_answer(words_of(row)) == ClockProblem.from_document(row["input_ids"]).answer

    own = {"sample", "rationale", "hinted", "critical"}
    for rows in made.values():
        assert all(right(row) for row in rows if row["curated"] in own)
    assert {"demonstration", "sample"} == {row["curated"] for row in made["rft"]}
    assert not any("knows" in words_of(row) for row in made["star"])
    assert all(row["score"] == max(row["scores"]) for row in made["grape"])
    assert all(len(row["critical"]) == len(row["input_ids"]) for row in made["critical"])
    # What the base finds likely, or verified itself, slips less than the demonstrators: each beats plain SFT.
    assert table["RFT"] > table["SFT"] < table["GRAPE"]
