"""qsft report: which runs it finds, how it groups them, and which cells are missing."""

import json

import numpy as np
import pytest
from evaluations import make_result
from evaluations import write_evaluation as write_results

from qsft.cli import main
from qsft.evals.published import paper
from qsft.evals.report import summarize
from qsft.evals.tasks import GROUPS
from qsft.experiments.report import report_runs

STUDENT = "Qwen/Qwen2.5-Math-1.5B"
TASKS = ("math500", "aime24")


def result(task, share, problems=40):
    rng = np.random.default_rng(0)
    return make_result(task, rng.random((problems, 2)) < share, lenient=True)


def write_evaluation(directory, share, model, tasks=TASKS):
    write_results(directory, [result(task, share) for task in tasks], model=model)
    summarize(directory).write(directory)


def write_run(place, target, share, recipe="numina_qwen_math_1p5b", tasks=TASKS, **hparams):
    run = place / "-".join([recipe, target, *(f"{name}{value}" for name, value in hparams.items()), str(share)])
    run.mkdir(parents=True)
    evaluation = {"eval_tasks": "math", "eval_protocol": "paper-math"}
    record = {"recipe": recipe, "target": target, "target_kwargs": hparams, **evaluation}
    record["values"] = {"model_name_or_path": STUDENT, **evaluation}
    (run / "recipe.json").write_text(json.dumps(record))
    if share is not None:
        write_evaluation(run / "_eval", share, str(run), tasks)
    return run


def test_settings_by_methods_with_published_numbers_wins_and_what_is_missing(tmp_path):
    write_run(tmp_path, "sft", 0.3)
    best = write_run(tmp_path, "target_sft", 0.8)
    write_run(tmp_path, "kd_hybrid", 0.6, c=0.2)
    write_run(tmp_path, "dft", None)
    write_run(tmp_path, "sft", 0.4, recipe="mine")
    write_evaluation(tmp_path / "evals" / "base", 0.1, STUDENT)
    found = report_runs([tmp_path]).summary
    assert list(found["settings"]) == ["numina_qwen_math_1p5b", "mine"]
    assert found["methods"] == ["base", "sft", "target_sft", "kd_hybrid-c0.2"]
    cells = found["settings"]["numina_qwen_math_1p5b"]["cells"]
    assert cells["target_sft"]["acc"]["mean"] == result("t", 0.8).scores.mean()
    assert cells["target_sft"]["directory"] == str(best / "_eval")
    assert cells["target_sft"]["lenient"]["mean"] == 1
    assert found["settings"]["mine"]["cells"]["base"] == cells["base"]  # one evaluation for both
    published = found["settings"]["numina_qwen_math_1p5b"]["published"]
    assert published["sft"] == pytest.approx((0.4229 + 0.0082) / 2)
    assert published["kd_hybrid-c0.2"] == pytest.approx((0.4432 + 0.0145) / 2)
    assert found["settings"]["mine"]["published"] == {}
    assert found["wins"] == {"target_sft": 1, "sft": 1}
    assert found["published_wins"] == {"Target-SFT": 1}
    missing = {(one["setting"], one["method"]): one["command"] for one in found["missing"]}
    first = "numina_qwen_math_1p5b"
    assert missing[first, "dft"] == f"qsft eval {tmp_path}/numina_qwen_math_1p5b-dft-None"
    assert missing[first, "kd_hybrid"] == "qsft sweep numina_qwen_math_1p5b --grid target=kd_hybrid"
    assert (first, "base") not in missing


def test_without_base_the_command_that_evaluates_it_is_named(tmp_path):
    write_run(tmp_path, "sft", 0.3)
    [command] = [one["command"] for one in report_runs([tmp_path]).summary["missing"] if one["method"] == "base"]
    assert command.startswith(f"qsft eval {STUDENT} --tasks math --protocol paper-math")


@pytest.mark.parametrize("ablation", paper()["ablations"].values(), ids=list(paper()["ablations"]))
def test_each_run_of_an_ablation_stands_beside_its_own_published_row(ablation, tmp_path, capsys):
    recipe = ablation["recipe"]
    tasks = [task.name for task in GROUPS["math"]]
    runs = {}
    for row, method in ablation["methods"].items():
        runs[row] = write_run(tmp_path, method["target"], 0.5, recipe, tasks, **method["target_kwargs"])
    averages = {row: sum(cells.values()) / len(cells) for row, cells in ablation["rows"].items()}
    found = report_runs([tmp_path])
    published = found.summary["settings"][recipe]["published"]
    by_directory = {cell["directory"]: name for name, cell in found.summary["settings"][recipe]["cells"].items()}
    for row, run in runs.items():
        method = by_directory[str(run / "_eval")]
        assert 100 * published[method] == pytest.approx(averages[row])
    assert main(["compare", *map(str, runs.values()), "--paper", recipe, "--output_dir", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    for row, run in runs.items():
        [line] = [line for line in lines if line.startswith(f"| {run.name}, published as ")]
        assert line.endswith(f" {averages[row]:.2f} |")


def test_as_published_target_sft_wins_ten_of_ten_whatever_its_eta_is_here(tmp_path):
    for recipe, setting in paper()["settings"].items():
        tasks = list(setting["rows"]["SFT"])
        write_run(tmp_path, "sft", 0.3, recipe, tasks)
        write_run(tmp_path, "target_sft", 0.8, recipe, tasks, eta=0.5)
    found = report_runs([tmp_path])
    assert found.summary["published_wins"] == {"Target-SFT": 10}
    assert "As published, Target-SFT has the highest average in 10 of 10 settings." in str(found)
    wins = next(line for line in str(found).splitlines() if line.startswith("| wins, published"))
    assert wins == "| wins, published | 0 | 10 |"


def test_a_tie_is_not_a_win(tmp_path):
    write_run(tmp_path, "sft", 0.3)
    write_run(tmp_path, "dft", 0.3)
    assert report_runs([tmp_path]).summary["wins"] == {}


def test_a_run_that_lacks_a_task_is_missing_and_of_two_alike_the_newest_counts(tmp_path):
    for share in (0.3, 0.5):
        write_run(tmp_path, "sft", share)
    write_run(tmp_path, "dft", 0.9, tasks=TASKS[:1])
    found = report_runs([tmp_path]).summary
    setting = found["settings"]["numina_qwen_math_1p5b"]
    assert setting["tasks"] == sorted(TASKS)
    assert set(setting["cells"]) == {"sft"}
    assert setting["cells"]["sft"]["acc"]["mean"] == result("t", 0.5).scores.mean()
    assert any("several runs of sft" in note for note in found["notes"])


def test_the_command_writes_page_and_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    assert "no evaluated run of a recipe below runs, sweeps, evals. Train one" in capsys.readouterr().err
    write_run(tmp_path / "runs", "sft", 0.3)
    write_run(tmp_path / "runs", "target_sft", 0.8, eta=0.5)
    assert main(["report"]) == 0
    assert "| numina_qwen_math_1p5b |" in capsys.readouterr().out
    latex = (tmp_path / "report" / "report.tex").read_text()
    assert r"numina\_qwen\_math\_1p5b" in latex
    assert latex.count(r"\textbf") == 1
    assert "Settings and methods" in (tmp_path / "report" / "report.html").read_text()
    assert json.loads((tmp_path / "report" / "report.json").read_text())["wins"] == {"target_sft-eta0.5": 1}
    assert main(["report", "nowhere"]) == 2
    assert "no directory nowhere to collect evaluated runs from. Name one" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", "empty"]) == 2
    assert "no evaluated run of a recipe" in capsys.readouterr().err
