"""qsft sweep: the grid, the plan, real runs in processes of their own, and continuing."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from qsft.cli import main
from qsft.commands.sweep import parse_eval_options
from qsft.experiments import sweep as sweep_module
from qsft.experiments.eval_request import EvalRequest
from qsft.experiments.sweep import Run, Sweep, expand_grid
from qsft.recipe.job import configure
from qsft.recipe.recipe_file import read_recipe
from qsft.recipe.run import recipe_record


def test_a_hyper_parameter_is_varied_for_the_targets_that_take_it():
    runs = expand_grid(["target=sft,kd_hybrid,target_sft", "eta=0.2,1.0", "c=0.5"])
    assert [run.name for run in runs] == ["sft", "kd_hybrid-c0.5", "target_sft-eta0.2", "target_sft-eta1.0"]
    train = Sweep("demo", runs, Path("runs")).commands(runs[2])["train"]
    assert train[5:8] == ["--target", "target_sft", "--target_kwargs.eta=0.2"]
    assert expand_grid(["eta=0.5"]) == [Run("target_sft", {"eta": 0.5})]
    assert expand_grid(["target=sft,sft"]) == [Run("sft", {})]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (["target"], "name=value"),
        (["target=sft,"], "name=value"),
        (["target=sft", "target=dft"], "has target twice. Write all its values together"),
        (["target=target_sft", "learning_rate=1e-5"], "holds for the whole sweep: give --learning_rate value"),
        (["targets=sft"], r"Did you mean 'target'\? They have: eta, form, tail\.$"),
        (["targets="], r"such as target=sft,dft or eta=0.2,0.5. Did you mean 'target='\?$"),
        (["target="], r"such as target=sft,dft or eta=0.2,0.5.$"),
        (["target=sfft"], "Did you mean 'sft'"),
        (["target=sft", "eta=1"], "none of the targets sft has a hyper-parameter 'eta'"),
        (["target=target_sft", "etta=1"], "Did you mean 'eta'"),
        (["target=target_sft", "eta=7"], r"eta = 7 is out of range"),
    ],
)
def test_a_wrong_grid_is_an_error_before_anything_runs(grid, words):
    with pytest.raises(ValueError, match=words):
        expand_grid(grid)


def test_every_run_is_evaluated_by_the_protocol_of_its_target(tmp_path):
    runs = expand_grid(["target=sft,dft,kd_hybrid,target_sft"])
    sweep = Sweep("openr1_qwen_math_7b", runs, tmp_path, ["--model_name_or_path", "unread"], {"num_samples": 2})
    chosen = []
    for run in runs:
        [_, _, _, _, recipe, *words] = sweep.commands(run)["train"]
        recipe_record(configure(read_recipe(recipe, words), processes=1)).write(tmp_path / run.name)
        request = sweep.eval_request(run)
        assert request.settings == {"num_samples": 2}
        assert request.output_dir == tmp_path / run.name / "_eval"
        again = EvalRequest.for_model(str(tmp_path / run.name), {"num_samples": 2})
        assert again == request  # the trained run requests the same
        chosen.append((request.tasks, request.protocol))
    assert chosen == [("math", "paper-math")] * 2 + [("math", "paper-math-7b-openr1")] * 2


def test_a_training_that_was_killed_inside_its_first_save_starts_anew(tmp_path):
    [run] = expand_grid(["target=sft"])
    sweep = Sweep("demo", [run], tmp_path)
    assert "--resume_from_checkpoint" not in sweep.commands(run)["train"]
    checkpoint = tmp_path / "sft" / "checkpoint-2"
    checkpoint.mkdir(parents=True)
    assert sweep.commands(run)["train"][-1] == "--overwrite"
    (checkpoint / "trainer_state.json").write_text("{}")  # complete, of another trainer
    assert sweep.commands(run)["train"][-2:] == ["--resume_from_checkpoint", "last"]


def test_base_is_the_untrained_student_and_all_sweeps_share_its_evaluation(tmp_path):
    def base(recipe, eval_options=""):
        runs = expand_grid(["target=base,target_sft", "eta=0.2"])
        assert [run.name for run in runs] == ["base", "target_sft-eta0.2"]
        sweep = Sweep(recipe, runs, tmp_path, [], parse_eval_options(eval_options))
        (command,) = sweep.commands(runs[0]).values()  # nothing is trained
        assert sweep.eval_request(runs[0]).output_dir == Path(command[-1])
        return command[3:]

    numina, openr1 = (base(f"{data}_qwen_math_7b") for data in ("numina", "openr1"))
    student = "Qwen/Qwen2.5-Math-7B"
    expected = ["eval", student, "--tasks", "math", "--protocol", "paper-math"]
    assert numina == openr1 == [*expected, "--output_dir", "evals/Qwen--Qwen2.5-Math-7B"]
    few = base("numina_qwen_math_7b", "--limit 2")
    assert few[-1] != numina[-1]  # another measurement is another place
    own = base("m23k_qwen_7b", "--tasks mine.jsonl --protocol paper-math")
    assert own[1:6] == ["Qwen/Qwen2.5-7B", "--tasks", "mine.jsonl", "--protocol", "paper-math"]


@pytest.mark.parametrize("options", ["--tasks medical", "--tasks=medical"])
def test_a_recipes_protocol_does_not_apply_to_another_kind_of_task_however_the_option_is_written(options, tmp_path):
    runs = expand_grid(["target=base,sft"])
    sweep = Sweep("numina_qwen_math_1p5b", runs, tmp_path, [], parse_eval_options(options))
    for run in runs:
        request = sweep.eval_request(run)
        assert (request.tasks, request.protocol) == ("medical", None)
        assert "paper-math" not in request.argv()


def test_an_unknown_option_of_the_evaluation_is_an_error_before_the_first_run():
    with pytest.raises(ValueError, match="--taks"):
        parse_eval_options("--taks medical")
    with pytest.raises(ValueError, match="--limit"):
        parse_eval_options("--limit many")


def test_runs_are_trained_evaluated_and_compared_and_a_second_call_does_nothing(
    tmp_path, local_words, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    # In this process: the next tests start real ones.
    monkeypatch.setattr(sweep_module, "run_child", lambda command: (main(command[3:]), False))
    (tmp_path / "sums.jsonl").write_text('{"problem": "w1 + w2 = ?", "answer": "3"}\n')
    words = ["sweep", "numina_qwen_math_1p5b", "--grid", "target=base,target_sft", "--output_dir", "sweep"]
    words += ["--eval", "--tasks sums.jsonl --num_samples 2 --max_new_tokens 4", *local_words()]
    assert main(words) == 0
    state = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert {name: run["done"] for name, run in state.items()} == {"base": ["eval"], "target_sft": ["train", "eval"]}
    comparison = json.loads((tmp_path / "sweep" / "comparison" / "comparison.json").read_text())
    assert comparison["baseline"] == "base"
    assert (tmp_path / "caches" / "numina_qwen_math_1p5b" / "manifest.json").is_file()  # one cache for all
    capfd.readouterr()

    assert main(words) == 0
    printed = capfd.readouterr().out
    assert "2 runs of numina_qwen_math_1p5b in sweep:" in printed
    assert "target_sft                       done" in printed
    assert "train\n" not in printed

    assert main([*words, "--num_processes", "1", "--dry_run"]) == 0  # where it runs is no other setting
    assert main([*words, "--learning_rate", "1e-3"]) == 2
    printed = capfd.readouterr().err
    assert "the train step of target_sft in sweep was started with different settings" in printed
    assert "'--learning_rate', '1e-3']" in printed
    words[words.index("--eval") + 1] += " --limit 1"
    words[words.index("target=base,target_sft")] = "target=target_sft"
    assert main(words) == 2
    assert "the eval step of target_sft in sweep was started with different settings" in capfd.readouterr().err


def test_overwrite_moves_the_earlier_runs_aside(tmp_path, local_words, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweep_module, "run_child", lambda command: (0, True))  # as if a signal stopped the first step
    words = ["sweep", "numina_qwen_math_1p5b", "--grid", "target=sft", "--output_dir", "sweep", *local_words()]
    (tmp_path / "sweep" / "sft").mkdir(parents=True)
    (tmp_path / "sweep" / "sft" / "model.safetensors").write_text("earlier")
    earlier = {"sft": {"train": {"recipe": "another"}, "done": ["train"]}}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(earlier))
    assert main(words) == 2
    assert "or pass --overwrite" in capfd.readouterr().err
    assert main([*words, "--overwrite"]) == 130
    moved = tmp_path / "sweep.previous" / "1"
    assert (moved / "sft" / "model.safetensors").read_text() == "earlier"
    assert json.loads((moved / "sweep.json").read_text()) == earlier
    assert json.loads((tmp_path / "sweep" / "sweep.json").read_text())["sft"]["done"] == []


def test_a_run_that_fails_stops_the_sweep_and_keeps_what_is_done(tmp_path, local_words, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "numina_qwen_math_1p5b", "--grid", "target=sft", "--output_dir", "sweep", *local_words()]
    assert main([*words, "--accelerate_config", "nosuch"]) == 2
    printed = capfd.readouterr().err
    assert "there is no accelerate configuration 'nosuch'" in printed
    assert "the sweep stopped: train of sft failed" in printed
    assert main([*words, "--model_name_or_path", "other", "--dry_run"]) == 0  # nothing is kept that would not fit
    assert "1 run of numina_qwen_math_1p5b in sweep:" in capfd.readouterr().out


# A training that takes a second: it prints that it has begun, and at a signal it saves and exits with 0.
STOPPABLE = """
import pathlib, signal, sys
run = pathlib.Path(sys.argv[1])
def stop(*_):
    (run / "checkpoint-1").mkdir()
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
run.mkdir(parents=True)
(run / "run.json").write_text("{}")
signal.pause()
"""


def test_a_training_that_a_signal_stopped_is_not_recorded_as_trained(tmp_path, monkeypatch, capfd):
    run = tmp_path / "sft"
    commands = {"train": [sys.executable, "-c", STOPPABLE, str(run)], "eval": ["never started"]}
    monkeypatch.setattr(Sweep, "commands", lambda *_: commands)
    threading.Thread(target=signal_when_there, args=(run / "run.json", signal.SIGINT), daemon=True).start()
    assert main(["sweep", "demo", "--grid", "target=sft", "--output_dir", str(tmp_path)]) == 130
    assert "rerun the command to continue" in capfd.readouterr().err
    assert (run / "checkpoint-1").is_dir()  # it was waited for
    assert json.loads((tmp_path / "sweep.json").read_text())["sft"]["done"] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_waits_for_the_checkpoint_and_the_run_is_not_recorded_as_trained(number, tmp_path, local_words, capfd):
    sweep = tmp_path / "sweep"
    words = ["sweep", "numina_qwen_math_1p5b", "--grid", "target=sft", "--output_dir", str(sweep)]
    words += local_words(num_train_epochs=500, save_strategy="no", disable_tqdm="true")
    # Training runs in a process group of its own: as on Ctrl-C in a terminal only the sweep gets the signal.
    threading.Thread(target=signal_when_there, args=(sweep / "sft" / "run.json", number), daemon=True).start()
    assert main(words) == 130
    printed, errors = capfd.readouterr()
    assert "Stopped after step" in printed
    assert "rerun the command to continue" in errors
    assert "Traceback" not in errors
    assert list((sweep / "sft").glob("checkpoint-*/trainer_state.json"))
    assert json.loads((sweep / "sweep.json").read_text())["sft"]["done"] == []
    assert main([*words, "--dry_run"]) == 0
    assert main([*words, "--seed", "7"]) == 2  # a checkpoint of another seed


def signal_when_there(file, number):
    """Signal this process once training has begun."""
    while not file.is_file():
        time.sleep(0.05)
    os.kill(os.getpid(), number)
