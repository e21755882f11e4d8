"""A run's own record of its recipe, and what `qsft eval` makes of it."""

import json

import pytest

from qsft.recipe.job import configure
from qsft.recipe.recipe_file import read_recipe
from qsft.recipe.run_recipe import next_steps
from qsft.recipe.trained import RECORD, base_words, evaluation_of, record_recipe, student_of


@pytest.fixture
def run(tmp_path):
    """Factory: the directory of a run of a packaged recipe, with its record."""

    def of(recipe, *words):
        place = ["--model_name_or_path", "unread", "--output_dir", str(tmp_path / "run")]
        record_recipe(configure(read_recipe(recipe, [*place, *words]), processes=1))
        return tmp_path / "run"

    return of


@pytest.mark.parametrize(
    ("recipe", "words", "tasks", "protocol"),
    [
        ("m23k_qwen_1p5b", [], "medical", "paper-medical"),
        ("numina_qwen_math_1p5b", [], "math", "paper-math"),
        ("openr1_qwen_math_7b", [], "math", "paper-math-7b-openr1"),
        ("openr1_qwen_math_7b", ["--target", "sft"], "math", "paper-math"),
        ("openr1_qwen_math_7b", ["--eval_tasks", "aime24"], "aime24", "paper-math-7b-openr1"),
        ("demo", [], "math", None),
    ],
)
def test_a_run_is_evaluated_as_its_recipe_says(recipe, words, tasks, protocol, run):
    directory = run(recipe, *words)
    assert evaluation_of(str(directory), None, None) == (str(directory), tasks, protocol)
    checkpoint = directory / "checkpoint-48"
    checkpoint.mkdir()
    assert evaluation_of(str(checkpoint), None, None) == (str(checkpoint), tasks, protocol)


def test_what_is_asked_for_goes_first_and_a_protocol_stays_with_its_kind_of_task(run):
    directory = str(run("openr1_qwen_math_7b"))
    assert evaluation_of(directory, "math500,aime24", None)[1:] == ("math500,aime24", "paper-math-7b-openr1")
    assert evaluation_of(directory, "medical", None)[1:] == ("medical", None)
    assert evaluation_of(directory, None, "avg16")[1:] == ("math", "avg16")


def test_the_record_says_target_and_values(run):
    record = json.loads((run("numina_qwen_math_1p5b", "--target_kwargs.eta", "0.2") / RECORD).read_text())
    assert (record["recipe"], record["target"], record["target_kwargs"]) == (
        "numina_qwen_math_1p5b",
        "target_sft",
        {"eta": 0.2},
    )
    assert record["values"]["dataset"] == "numina"


def test_the_student_of_a_world_is_recorded_so_that_report_and_compare_know_its_base(tmp_path, monkeypatch):
    from qsft.demo import foundation

    monkeypatch.setattr(foundation, "demo_models", lambda seed: (tmp_path / "base", tmp_path / "teacher"))
    job = configure(read_recipe("demo", ["--output_dir", str(tmp_path / "run")]), processes=1)
    assert "qsft explore run" in next_steps(job)  # no task asks about clocks
    record_recipe(job)
    record = json.loads((tmp_path / "run" / RECORD).read_text())
    assert base_words(student_of(record), ())[0] == str(tmp_path / "base")


@pytest.mark.parametrize("content", ["[]", "{", "", '"text"'])
def test_a_broken_record_is_named(content, tmp_path):
    (tmp_path / RECORD).write_text(content)
    with pytest.raises(ValueError, match=r"recipe.json.*Delete it"):
        evaluation_of(str(tmp_path), None, None)


def test_a_directory_without_a_record_is_measured_on_math(tmp_path):
    assert evaluation_of(str(tmp_path), None, None) == (str(tmp_path), "math", None)
