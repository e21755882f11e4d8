"""A run's own record of its recipe, and what `qsft eval` makes of it."""

import json

import pytest

from qsft.experiments.eval_request import EvalRequest
from qsft.recipe.job import configure
from qsft.recipe.prepare import make_models
from qsft.recipe.recipe_file import read_recipe
from qsft.recipe.record import read_recipe_record
from qsft.recipe.run import next_steps_message, recipe_record
from qsft.run_directory import RECIPE_RECORD


@pytest.fixture
def run(tmp_path):
    """Factory: the directory of a run of a packaged recipe, with its record."""

    def of(recipe, *words):
        place = ["--model_name_or_path", "unread", "--output_dir", str(tmp_path / "run")]
        recipe_record(configure(read_recipe(recipe, [*place, *words]), processes=1)).write(tmp_path / "run")
        return tmp_path / "run"

    return of


@pytest.mark.parametrize(
    ("recipe", "words", "tasks", "protocol"),
    [
        ("m23k_qwen_1p5b", [], "medical", "li-medical"),
        ("numina_qwen_math_1p5b", [], "math", "paper-math"),
        ("openr1_qwen_math_7b", [], "math", "paper-math-7b-openr1"),
        ("openr1_qwen_math_7b", ["--target", "sft"], "math", "paper-math"),
        ("openr1_qwen_math_7b", ["--eval_tasks", "aime24"], "aime24", "paper-math-7b-openr1"),
        ("demo", [], "math", None),
    ],
)
def test_a_run_is_evaluated_as_its_recipe_says(recipe, words, tasks, protocol, run):
    directory = run(recipe, *words)
    assert EvalRequest.for_model(str(directory), {}) == EvalRequest(
        str(directory), tasks, protocol, directory / "_eval"
    )
    checkpoint = directory / "checkpoint-48"
    checkpoint.mkdir()
    request = EvalRequest.for_model(str(checkpoint), {})
    assert request == EvalRequest(str(checkpoint), tasks, protocol, checkpoint / "_eval")


def test_given_options_come_first_and_a_protocol_stays_with_its_kind_of_task(run):
    directory = str(run("openr1_qwen_math_7b"))

    def resolved(**given):
        request = EvalRequest.for_model(directory, given)
        return request.tasks, request.protocol

    assert resolved(tasks="math500,aime24") == ("math500,aime24", "paper-math-7b-openr1")
    assert resolved(tasks="medical") == ("medical", None)
    assert resolved(protocol="paper-medical") == ("math", "paper-medical")


def test_the_untrained_student_of_a_run_is_measured_by_the_recipes_protocol_not_by_the_targets(run):
    record = read_recipe_record(run("openr1_qwen_math_7b"))
    assert record.eval_protocol == "paper-math-7b-openr1"
    assert EvalRequest.for_untrained_student(record.values, {}).protocol == "paper-math"


def test_a_request_is_a_command_and_is_read_back_from_json(tmp_path):
    settings = {"limit": 2, "overwrite": True, "stop": ["a b", "c"]}
    request = EvalRequest("org/model", "math", None, tmp_path, settings)
    words = ["org/model", "--tasks", "math", "--limit", "2", "--overwrite", "--stop", "a b", "c"]
    assert request.argv() == [*words, "--output_dir", str(tmp_path)]
    assert EvalRequest.from_json(json.loads(json.dumps(request.as_json()))) == request


def test_the_record_has_target_and_values(run):
    record = json.loads((run("numina_qwen_math_1p5b", "--target_kwargs.eta", "0.2") / RECIPE_RECORD).read_text())
    assert (record["recipe"], record["target"], record["target_kwargs"]) == (
        "numina_qwen_math_1p5b",
        "target_sft",
        {"eta": 0.2},
    )
    assert record["values"]["dataset_name"] == "numina"


def test_a_student_made_by_a_function_is_recorded_so_that_report_and_compare_find_its_base(tmp_path, monkeypatch):
    from qsft.demo import recipe_functions

    monkeypatch.setattr(recipe_functions, "demo_models", lambda seed: (tmp_path / "base", tmp_path / "teacher"))
    job = make_models(configure(read_recipe("demo", ["--output_dir", str(tmp_path / "run")]), processes=1))
    assert "qsft explore run" in next_steps_message(job)  # no task is about clocks
    assert recipe_record(job).student == str(tmp_path / "base")


@pytest.mark.parametrize("content", ["[]", "{", "", '"text"'])
def test_a_broken_record_is_named(content, tmp_path):
    (tmp_path / RECIPE_RECORD).write_text(content)
    with pytest.raises(ValueError, match=r"recipe.json.*Delete it"):
        EvalRequest.for_model(str(tmp_path), {})


def test_a_directory_without_a_record_is_measured_on_math(tmp_path):
    assert EvalRequest.for_model(str(tmp_path), {}) == EvalRequest(str(tmp_path), "math", None, tmp_path / "_eval")
