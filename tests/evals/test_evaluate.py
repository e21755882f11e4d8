"""An evaluation from end to end: by the command, killed and resumed, on two processes, in memory."""

import itertools
import json
import os
import re
import subprocess
import sys

import pytest
import tiny
from sum_tasks import SHAPE

from qsft.evals.compare import compare
from qsft.evals.eval_directory import EvalDirectory
from qsft.evals.evaluate import evaluate, rescore
from qsft.evals.grading.grade import Grade
from qsft.evals.grading.pool import grade
from qsft.evals.tasks import Problem, Task
from qsft.inference.transformers_sampler import TransformersSampler

FREE = ("--prompt", "plain", "--num_samples", "4", "--max_new_tokens", "8")
ENTRY = "from qsft.cli import command\ncommand()\n"


def start(*words, launcher=("-c", ENTRY)):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, *launcher, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def generations(directory):
    return (directory / "generations" / "sums.jsonl").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def whole_run(sum_directory, sum_file, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    how = {"prompt": "plain", "num_samples": 4, "max_new_tokens": 8}
    report = evaluate(sum_directory, str(sum_file), output_dir=directory, silent=True, **how)
    return directory, report


def test_the_command_evaluates_a_trained_model(command, sum_directory, sum_file, whole_run, tmp_path, capsys):
    assert command("eval", sum_directory, "--tasks", sum_file, *FREE, "--output_dir", tmp_path, "--batch_size", 7) == 0
    out, err = capsys.readouterr()
    assert "| sums | 40 | 4 |" in out
    assert str(tmp_path / "report.html") in out
    assert re.search(r"sums: 160/160 samples, [\d,]+ tokens/s", err)
    assert generations(tmp_path) == generations(whole_run[0])
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert (summary["settings"]["context"], summary["settings"]["dtype"]) == (64, "float32")
    assert summary["tasks"]["sums"]["acc"]["mean"] == whole_run[1].accuracy("sums")
    assert whole_run[1].accuracy("sums") < 1  # both grades occur
    assert "batching, processes and resuming do not change samples" in (tmp_path / "summary.md").read_text("utf-8")
    assert 1e6 < (tmp_path / "report.html").stat().st_size < 6e6


def test_the_accuracy_is_that_of_the_texts(whole_run, sum_file):
    directory, report = whole_run
    golds = [json.loads(line)["answer"] for line in sum_file.read_text(encoding="utf-8").splitlines()]
    texts = [json.loads(line)["text"] for line in generations(directory).splitlines()]
    right = [rf"\boxed{{{golds[i // 4]}}}" in text for i, text in enumerate(texts)]
    assert report.accuracy("sums") == pytest.approx(sum(right) / len(right))
    assert report.results["sums"].scores.shape == (40, 4)


def test_the_gain_by_training_is_significant(whole_run, sum_file, sum_tokenizer, tmp_path):
    untrained = tiny.make_model(architecture="llama", **SHAPE)
    how = {"prompt": "plain", "num_samples": 4, "max_new_tokens": 8, "tokenizer": sum_tokenizer, "silent": True}
    assert evaluate(untrained, str(sum_file), output_dir=tmp_path / "untrained", **how).accuracy("sums") < 0.05
    gained = compare([tmp_path / "untrained", whole_run[0]], names=["untrained", "trained"]).summary["difference"]
    assert gained["trained"]["sums"]["low"] > 0.15


def test_a_complete_run_is_not_sampled_again(whole_run, sum_directory, sum_file, monkeypatch):
    monkeypatch.setattr("qsft.inference.model.InferenceModel.sampler", None)
    how = {"prompt": "plain", "num_samples": 4, "max_new_tokens": 8}
    again = evaluate(sum_directory, str(sum_file), output_dir=whole_run[0], silent=True, **how)
    assert again.summary == whole_run[1].summary


def test_stopped_and_resumed_it_equals_an_uninterrupted_run(
    command, sum_directory, sum_file, whole_run, tmp_path, monkeypatch
):
    """As a kill leaves it; test_campaign.py kills processes."""
    words = ("eval", sum_directory, "--tasks", sum_file, *FREE, "--output_dir", tmp_path, "--batch_size", "4")
    path = tmp_path / "generations" / "sums.jsonl"
    sample = TransformersSampler.sample

    def stopped(self, requests):
        yield from itertools.islice(sample(self, requests), 20)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(TransformersSampler, "sample", stopped)
        with pytest.raises(KeyboardInterrupt):
            command(*words)
    kept = path.read_text(encoding="utf-8")
    assert kept.count("\n") == 20
    path.write_text(kept + '{"problem": "torn', encoding="utf-8")
    assert command(*words) == 0
    assert generations(tmp_path) == generations(whole_run[0])
    assert json.loads((tmp_path / "summary.json").read_text("utf-8"))["tasks"] == whole_run[1].summary["tasks"]


@pytest.mark.slow
@pytest.mark.distributed
def test_two_processes_equal_one(sum_directory, sum_file, whole_run, tmp_path):
    entry = tmp_path / "entry.py"
    entry.write_text(ENTRY, encoding="utf-8")
    launcher = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", str(entry))
    words = ("eval", sum_directory, "--tasks", sum_file, *FREE, "--output_dir", tmp_path / "run")
    process = start(*words, launcher=launcher)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("| sums | 40 | 4 |") == 1
    assert generations(tmp_path / "run") == generations(whole_run[0])
    assert "sums: 80/80 samples" in err  # each process drew its half


def test_changed_settings_raise_and_overwrite_moves_the_old_ones_aside(
    sum_directory, sum_file, tmp_path, command, monkeypatch
):
    words = ("eval", sum_directory, "--tasks", sum_file, *FREE, "--limit", "3", "--output_dir", tmp_path)
    assert command(*words) == 0
    before = generations(tmp_path)
    monkeypatch.chdir(tmp_path.parent)  # messages show paths relative to the current directory
    what = f"^{tmp_path.name} has generations of 'sums' made with other settings"
    with pytest.raises(ValueError, match=rf"{what}: seed was 0, is 1.*--overwrite"):
        command(*words, "--seed", 1)
    with pytest.raises(ValueError, match=r"prompts was"):
        command(*words, "--prompt", "plain-boxed")
    assert generations(tmp_path) == before
    assert command(*words, "--seed", 1, "--overwrite") == 0
    assert generations(tmp_path) != before
    assert generations(tmp_path.with_name(f"{tmp_path.name}.previous") / "1") == before


def test_more_samples_and_problems_add_to_what_is_there(sum_directory, sum_file, whole_run, tmp_path, command, capsys):
    words = ("eval", sum_directory, "--tasks", sum_file, *FREE, "--output_dir", tmp_path)
    assert command(*words, "--limit", 3, "--num_samples", 2) == 0
    assert command(*words, "--limit", 3) == 0
    assert "sums: 12/12 samples" in capsys.readouterr().err
    with pytest.raises(
        ValueError, match=r"other settings: limit was 3, is 2; num_samples was 4, is 2\. Choose another"
    ):
        command(*words, "--limit", 2, "--num_samples", 2)
    assert command(*words) == 0
    assert generations(tmp_path) == generations(whole_run[0])
    with pytest.raises(ValueError, match="prompts was"):
        command(*words, "--num_samples", 5, "--prompt", "plain-boxed")


def test_a_run_that_failed_to_start_does_not_bind_the_next(sum_directory, sum_file, tmp_path, command):
    words = ("eval", sum_directory, "--tasks", sum_file, *FREE, "--limit", "2", "--output_dir", tmp_path)
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        command(*words, "--seed", 1, "--batch_size", 0)
    assert command(*words) == 0


def test_retrained_weights_raise(sum_model, sum_tokenizer, sum_file, tmp_path):
    import torch

    how = {"tokenizer": sum_tokenizer, "output_dir": tmp_path, "silent": True, "prompt": "plain", "max_new_tokens": 3}
    evaluate(sum_model, str(sum_file), limit=2, num_samples=2, **how)
    with torch.no_grad():
        sum_model.model.norm.weight.mul_(1.01)
        try:
            with pytest.raises(ValueError, match="other settings: model was"):
                evaluate(sum_model, str(sum_file), limit=2, num_samples=2, **how)
        finally:
            sum_model.model.norm.weight.div_(1.01)


def test_rescore_needs_no_model(whole_run, sum_file, command, tmp_path, capsys):
    rows = [json.loads(line) for line in sum_file.read_text(encoding="utf-8").splitlines()]
    wrong = tmp_path / "sums.jsonl"
    wrong.write_text("".join(json.dumps({**row, "answer": "99"}) + "\n" for row in rows), encoding="utf-8")
    before = (whole_run[0] / "summary.json").read_text(encoding="utf-8")
    assert rescore(whole_run[0], str(wrong)).accuracy("sums") == 0
    assert command("eval", "no/model", "--rescore", "--output_dir", whole_run[0], "--tasks", sum_file) == 0
    assert (whole_run[0] / "summary.json").read_text(encoding="utf-8") == before
    with pytest.raises(ValueError, match="rule = 'first' is not one of"):
        rescore(whole_run[0], str(sum_file), rule="first")
    with pytest.raises(FileNotFoundError, match="nothing to rescore"):
        rescore(tmp_path)


def test_rescore_finds_the_task_file_and_the_data_again(sum_directory, sum_file, tmp_path, command, monkeypatch):
    words = ("eval", sum_directory, *FREE, "--limit", "2")
    monkeypatch.chdir(sum_file.parent)
    assert command(*words, "--tasks", sum_file.name, "--output_dir", tmp_path / "file") == 0
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "aime24.jsonl").write_text(sum_file.read_text("utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert command(*words, "--tasks", "aime24", "--data_dir", "data", "--output_dir", tmp_path / "named") == 0
    monkeypatch.chdir("/")
    rescore(tmp_path / "file", rule="li")
    assert EvalDirectory(tmp_path / "file").settings()["sums"].protocol["rule"] == "li"
    assert rescore(tmp_path / "file").summary["tasks"]["sums"]["problems"] == 2
    assert rescore(tmp_path / "named").summary["tasks"]["aime24"]["problems"] == 2


def test_a_second_task_joins_the_report_of_the_first(sum_directory, sum_file, tmp_path, command):
    words = ("eval", sum_directory, *FREE, "--limit", "3", "--output_dir", tmp_path)
    other = tmp_path / "other.jsonl"
    other.write_text(sum_file.read_text("utf-8"), encoding="utf-8")
    assert command(*words, "--tasks", sum_file) == 0
    alone = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert command(*words, "--tasks", other, "--num_samples", "2") == 0
    both = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    assert list(both["tasks"]) == list(both["settings"]["tasks"]) == ["sums", "other"]
    assert both["tasks"]["sums"] == alone["tasks"]["sums"]
    assert both["settings"]["tasks"]["sums"] == alone["settings"]["tasks"]["sums"]
    means = [task["acc"]["mean"] for task in both["tasks"].values()]
    assert both["macro"]["acc"]["mean"] == pytest.approx(sum(means) / 2)
    assert command("eval", "no/model", "--rescore", "--output_dir", tmp_path, "--tasks", "other") == 0
    assert json.loads((tmp_path / "summary.json").read_text("utf-8")) == both
    path = tmp_path / "generations" / "sums.jsonl"
    path.write_text(path.read_text("utf-8").partition("\n")[2], encoding="utf-8")
    assert command(*words, "--tasks", other, "--num_samples", "2") == 0
    assert "sums is left out: it is not finished" in (tmp_path / "summary.md").read_text("utf-8")
    path.unlink()
    assert command(*words, "--tasks", other, "--num_samples", "2") == 0
    assert "sums is left out: its generations are lost" in (tmp_path / "summary.md").read_text("utf-8")


def test_generations_without_settings_are_not_reused(sum_directory, sum_file, tmp_path, command):
    words = ("eval", sum_directory, "--tasks", sum_file, *FREE, "--limit", "2", "--output_dir", tmp_path)
    assert command(*words) == 0
    settings = (tmp_path / "settings.json").read_text("utf-8")
    (tmp_path / "settings.json").unlink()
    with pytest.raises(ValueError, match=r"settings.json does not say what made them.*--overwrite"):
        command(*words)
    (tmp_path / "settings.json").write_text(settings[:-20], encoding="utf-8")
    with pytest.raises(ValueError, match=r"settings.json: not valid JSON. Restore the file"):
        command(*words)
    (tmp_path / "settings.json").write_text(settings, encoding="utf-8")
    assert command(*words) == 0


def test_a_place_that_is_a_file_is_named(sum_directory, sum_file, tmp_path, command):
    (tmp_path / "taken").write_text("mine", encoding="utf-8")
    with pytest.raises(OSError, match=r"taken cannot be a directory: a file is in the way"):
        command("eval", sum_directory, "--tasks", sum_file, *FREE, "--output_dir", tmp_path / "taken")


def test_multiple_choice_is_scored_by_the_rule_and_all_readings_are_reported(sum_model, sum_tokenizer):
    texts = [
        "The answer is B. No, the answer is A.",
        r"The answer is C. \boxed{A}, so the answer is A",
        "The answer is B",
    ]
    options = {"A": "x", "B": "y", "C": "z"}
    problems = [Problem(str(i), text, "A", options) for i, text in enumerate(texts)]
    task = Task(
        "medical",
        problems=problems,
        multiple_choice=True,
        prompt=lambda problem: "1 + 2 =",
        grader=lambda generation, problem: grade(problem.question, "A", options=options, rule="li"),
    )
    report = evaluate(sum_model, task, tokenizer=sum_tokenizer, max_new_tokens=2, silent=True)
    numbers = report.summary["tasks"]["medical"]
    assert numbers["reading"] == "last"
    assert numbers["readings"] == pytest.approx({"boxed": 2 / 3, "first": 0, "last": 2 / 3})
    assert numbers["acc"]["mean"] == pytest.approx(2 / 3)
    assert [one.answer for one in report.results["medical"].grades] == ["A", "A", "B"]
    assert "medical: read by the last match of the rule of the paper" in str(report)
    assert "by the box 66.7 %, by the first match of the paper's rule 0.0 %, by its last 66.7 %" in str(report)


def test_without_math_verify_nothing_is_generated(sum_directory, sum_file, tmp_path, monkeypatch):
    monkeypatch.setattr("qsft.evals.grading.pool.find_spec", lambda module: None)
    with pytest.raises(ValueError, match=r"grading needs math-verify.*pip install 'qsft\[eval\]'"):
        evaluate(sum_directory, str(sum_file), output_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words", [("--num_samples", "0"), ("--limit", "3"), ("--protocol", "paper-math"), ("--stop", "x"), ("--overwrite",)]
)
def test_options_that_rescore_does_not_use_raise(whole_run, command, words):
    with pytest.raises(ValueError, match=f"--rescore grades all responses.*{words[0]} cannot be used"):
        command("eval", "no/model", "--rescore", "--output_dir", whole_run[0], *words)


def test_a_task_of_ones_own_with_prompt_and_grader_in_memory(sum_model, sum_tokenizer):
    problems = [Problem(f"{a}+{b}", f"{a} + {b} =", str(a + b)) for a, b in ((1, 2), (3, 4), (9, 9))]

    def grader(generation, problem):
        answer = generation.text.split()[-1] if generation.text and generation.finish == "stop" else None
        return Grade(answer == f"\\boxed{{{problem.gold}}}", answer=answer)

    tasks = [
        Task("ours", problems=problems, prompt=lambda d: sum_tokenizer(d.question)["input_ids"], grader=grader),
        Task("truth", problems=problems, prompt=lambda d: d.question, grader=lambda g, d: True),
    ]
    report = evaluate(sum_model, tasks, tokenizer=sum_tokenizer, num_samples=8, max_new_tokens=8, silent=True)
    assert report.accuracy("truth") == 1.0
    assert 0 < report.accuracy("ours") < 1
    assert report.summary["macro"]["acc"]["mean"] == pytest.approx((1 + report.accuracy("ours")) / 2)


def test_timeouts_and_errors_of_grading_are_reported(sum_model, sum_tokenizer):
    problems = [Problem(str(i), "1 + 2 =", "3") for i in range(3)]
    verdicts = {"0": Grade(False, timed_out=True), "1": Grade(False, failure="TypeError: why"), "2": Grade(True)}
    task = Task("t", problems=problems, prompt=lambda d: d.question, grader=lambda g, d: verdicts[d.id])
    text = str(evaluate(sum_model, task, tokenizer=sum_tokenizer, num_samples=1, max_new_tokens=2, silent=True))
    assert "t: 1 responses took too long to grade" in text
    assert "t: grading raised errors on 1 responses, which count as wrong (TypeError; see grades/)" in text


def test_half_precision_says_that_batching_may_change_samples(sum_model, sum_tokenizer, sum_file):
    import copy

    half = copy.deepcopy(sum_model).bfloat16()
    settings = {"prompt": "plain", "num_samples": 2, "max_new_tokens": 6, "limit": 3}
    report = evaluate(half, str(sum_file), tokenizer=sum_tokenizer, silent=True, **settings)
    assert "batching may change samples" in str(report)


def test_a_recipe_names_model_tasks_and_protocol(sum_directory, sum_file, tmp_path, command, monkeypatch):
    recipe = tmp_path / "mine.yaml"
    values = {"output_dir": str(sum_directory), "eval_tasks": str(sum_file), "eval_protocol": "paper-math"}
    recipe.write_text("".join(f'{key}: "{value}"\n' for key, value in values.items()), encoding="utf-8")
    words = ("--prompt", "plain", "--max_new_tokens", "6", "--limit", "2", "--output_dir", tmp_path / "run")
    monkeypatch.chdir(sum_directory.parent)
    assert command("eval", recipe, *words) == 0
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert f"<title>Evaluation of {sum_directory.name}</title>" in page
    assert json.loads((tmp_path / "run" / "summary.json").read_text("utf-8"))["tasks"]["sums"]["samples"] == 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--protocol", "paper-maths"), "unknown protocol 'paper-maths'. Did you mean 'paper-math'"),
        (("--prompt", "boxd"), "unknown prompt 'boxd'. Did you mean 'boxed'"),
        (("--prompt", "boxed"), "has no chat template.*--prompt plain-boxed"),
        (("--num_samples", "0"), "num_samples = 0"),
        (("--rule", "first"), "rule = 'first' is not one of"),
        (("--backend", "vlm"), "backend = 'vlm' is not one of"),
        (("--backend", "vllm"), r"vLLM is not installed. Run pip install 'qsft\[vllm\]'"),
        (("--dtype", "flot32"), "unknown dtype 'flot32'; choose auto, float32"),
        (("--dtype", "int8"), "unknown dtype 'int8'"),
        (("--batch_size", "0"), "batch_size must be at least 1"),
    ],
)
def test_bad_settings_raise(command, sum_directory, sum_file, tmp_path, words, message, monkeypatch):
    monkeypatch.setattr("qsft.inference.model.find_spec", lambda module: None)
    with pytest.raises(ValueError, match=message):
        command("eval", sum_directory, "--tasks", sum_file, "--output_dir", tmp_path, "--prompt", "plain", *words)
