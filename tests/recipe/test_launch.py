"""Recipes run for real: by the literal commands, to the end, stopped and resumed."""

import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback
from trl import SFTConfig

from qsft.cli import main
from qsft.recipe.job import configure
from qsft.recipe.keys import RecipeSettings, keys
from qsft.recipe.prepare import PreparedJob, prepare
from qsft.recipe.recipe_cache import build_recipe_cache
from qsft.recipe.recipe_file import packaged_recipes, read_recipe
from qsft.recipe.run import train
from qsft.teacher.cache import TeacherCache
from qsft.train.config import DEFAULT_TARGET, own_fields

REPO = Path(__file__).parents[2]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]


def run(command, folder, **kwargs):
    """The finished process, started in `folder`: nothing may depend on the working directory being the checkout."""
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=300, **kwargs)


@pytest.mark.parametrize("recipe", packaged_recipes(), ids=lambda file: file.stem)
def test_dry_run_of_every_recipe(recipe, tiny_run, capsys):
    words = tiny_run(recipe.stem.split("_")[0]).words
    train(read_recipe(recipe.stem, [*words, "--dry_run"]))
    printed = " ".join(capsys.readouterr().out.split())
    assert "rows used 64" in printed
    assert "global batch 16 =" in printed
    assert "optimizer steps 4" in printed
    assert "lr_scheduler_type cosine" in printed
    assert "cache: missing; the first run builds it" in printed
    assert not Path(words[words.index("--output_dir") + 1]).exists()


@pytest.mark.parametrize(
    "recipe", ["numina_qwen_math_1p5b", pytest.param("m23k_llama_3b", marks=pytest.mark.slow)], ids=str
)
def test_accelerate_launch_literally_to_the_end(recipe, tiny_run):
    tiny = tiny_run(recipe.split("_")[0])
    done = run([*ACCELERATE, REPO / "recipes" / f"{recipe}.yaml", *tiny.words], tiny.folder)
    assert done.returncode == 0, done.stderr
    assert "qsft eval " in done.stdout.splitlines()[-1]
    model = AutoModelForCausalLM.from_pretrained(tiny.folder / "run")
    start = AutoModelForCausalLM.from_pretrained(tiny.words[1])
    assert not torch.equal(model.lm_head.weight, start.lm_head.weight)
    manifest = json.loads((tiny.folder / "run" / "data_manifest.json").read_text())
    assert manifest["rows"]["used"] == len(manifest["row_ids"]) == 64
    assert len(TeacherCache(tiny.folder / "cache")) > 0


def test_a_second_run_finds_the_cache_complete(tiny_run, capsys):
    tiny = tiny_run("numina")
    first = build_recipe_cache(read_recipe("numina_qwen_math_1p5b", tiny.words))
    files = {file: file.stat().st_mtime_ns for file in first.path.glob("*.safetensors")}
    words = [*tiny.words, "--max_steps", "1"]
    train(read_recipe("numina_qwen_math_1p5b", [*words, "--dry_run"]))
    assert re.search(r"cache: (\d+) of \1 documents, complete", " ".join(capsys.readouterr().out.split()))
    train(read_recipe("numina_qwen_math_1p5b", words))
    assert {file: file.stat().st_mtime_ns for file in first.path.glob("*.safetensors")} == files


@pytest.mark.parametrize("target", ["sft", "dft"])
def test_targets_without_a_teacher_need_no_cache(target, tiny_run):
    tiny = tiny_run("numina")
    train(read_recipe("numina_qwen_math_1p5b", [*tiny.words, "--target", target, "--max_steps", "2"]))
    assert (tiny.folder / "run" / "model.safetensors").exists()
    assert not (tiny.folder / "cache").exists()


def test_anchored_targets_read_the_student_before_training_and_both_caches_stay(tiny_run, monkeypatch, capsys):
    tiny = tiny_run("numina")
    monkeypatch.setenv("QSFT_CACHE", str(tiny.folder / "home"))
    found = {}
    for target in ("target_sft", "asft", "kd_hybrid"):
        words = [*tiny.words, "--target", target, "--max_steps", "1", "--output_dir", str(tiny.folder / target)]
        train(read_recipe("numina_qwen_math_1p5b", words))
        capsys.readouterr()
        words += ["--output_dir", str(tiny.folder / "next"), "--dry_run"]
        train(read_recipe("numina_qwen_math_1p5b", words))
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  cache "))
        assert line.endswith("documents, complete")
        found[target] = Path(line.split()[1].rstrip(":"))
    assert found["target_sft"] == found["kd_hybrid"] == tiny.folder / "cache"
    assert found["asft"].is_relative_to(tiny.folder / "home")
    rows = [TeacherCache(found[target]).vocab_size for target in ("target_sft", "asft")]
    assert rows == [384, 320]  # the teacher's head and the student's


@pytest.mark.parametrize("recipe", [None, "numina_qwen_math_1p5b"])
def test_the_option_teacher_is_the_trainers_argument(recipe, tiny_files, local_words, tmp_path, monkeypatch):
    """A model's path, the directory of a cache, or base, also where the recipe names another teacher."""
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "caches"))
    words = local_words(dataset_name="numina", output_dir=tmp_path / "run", teacher_cache="null")
    at = words.index("--teacher_model_name_or_path")
    del words[at : at + 2]

    def trainer(teacher):
        return prepare(configure(read_recipe(recipe, [*words, "--teacher", str(teacher)]))).trainer()

    named = trainer(tiny_files / "teacher")
    assert named.cache.manifest.identity.teacher["name"] == str(tiny_files / "teacher")
    assert trainer(named.cache.path).cache.path == named.cache.path
    base = trainer("base")
    assert base.resolved_teacher.source.is_base
    assert base.cache.path != named.cache.path


def python_main(recipe, words, monkeypatch):
    """`python recipes/NAME.yaml words …` without a new interpreter; its exit code."""
    monkeypatch.setattr(sys, "argv", [str(recipe), *words])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(recipe), run_name="__main__")
    return end.value.code


def test_python_runs_a_recipe(tiny_run, monkeypatch, capsys):
    recipe = REPO / "recipes" / "m23k_qwen_1p5b.yaml"
    assert python_main(recipe, [*tiny_run("m23k").words, "--dry_run"], monkeypatch) == 0
    assert "rows used 64" in " ".join(capsys.readouterr().out.split())
    assert python_main(recipe, ["--learnin_rate", "1"], monkeypatch) == 2
    assert "Did you mean 'learning_rate'?" in capsys.readouterr().err


def test_one_of_several_processes_describes_the_run(tiny_run, monkeypatch, capsys):
    monkeypatch.setattr("qsft.recipe.dry_run.is_main", lambda: False)
    train(read_recipe("numina_qwen_math_1p5b", [*tiny_run("numina").words, "--dry_run"]))
    assert capsys.readouterr().out == ""


def test_a_run_without_a_recipe(tiny_run):
    tiny = tiny_run("numina")
    words = [*tiny.words, "--dataset_name", "numina", "--target", "dft", "--max_steps", "1"]
    train(read_recipe(None, words))
    assert (tiny.folder / "run" / "model.safetensors").exists()


def test_the_command_takes_a_recipe_or_options_alone(tiny_run, capsys):
    words = [*tiny_run("numina").words, "--dry_run"]
    assert main(["train", "numina_qwen_math_1p5b", *words]) == 0
    assert main(["train", "--target", "sft", "--dataset_name", "numina", *words]) == 0
    assert capsys.readouterr().out.count("Nothing was trained") == 2
    assert main(["train", "--taget", "sft"]) == 2
    assert "Did you mean 'target'" in capsys.readouterr().err
    assert main(["train", "numina_qwen_math_1p5b", "--target", "tarjet", "--dry_run"]) == 2  # before any download
    assert "there is no target 'tarjet'" in capsys.readouterr().err
    assert main(["train"]) == 2
    assert "Name a RECIPE" in capsys.readouterr().err


def test_an_evaluation_on_the_training_rows_raises(tiny_run, capsys):
    words = [*tiny_run("numina").words, "--dataset_test_split", "test", "--eval_strategy", "steps", "--target", "sft"]
    assert main(["train", "numina_qwen_math_1p5b", *words]) == 2
    assert "has no split 'test'" in capsys.readouterr().err


def test_a_model_that_is_nowhere_is_named(tiny_run, capsys):
    words = ["--data_dir", str(tiny_run("numina").data), "--use_cpu", "true", "--bf16", "false", "--dry_run"]
    assert main(["train", "numina_qwen_math_1p5b", *words]) == 2
    message = capsys.readouterr().err
    assert "there is no model 'Qwen/Qwen2.5-Math-1.5B'" in message
    assert "Check the path or id" in message


def test_every_key_has_help(capsys):
    assert main(["train", "--keys"]) == 0
    printed = capsys.readouterr().out
    for name, key in keys().items():
        assert f"--{key.dest}  (default: " in printed
        assert key.help, name


def test_the_help_of_train_has_qsfts_own_keys_in_groups_and_names_the_option_that_lists_the_rest(capsys):
    with pytest.raises(SystemExit) as finished:
        main(["train", "--help"])
    assert finished.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    shown = {line.strip().removeprefix("--") for line in lines if line.startswith("  --")}
    own = {field.name for field in [*fields(RecipeSettings), *own_fields()]}
    assert own <= shown
    assert not shown & {field.name for field in fields(SFTConfig)}
    assert lines.index("target and teacher:") < lines.index("data:") < lines.index("run:")
    text = " ".join(" ".join(lines).split())
    assert f"(default: {DEFAULT_TARGET})" in text
    assert "--keys PATTERN" in text


def test_lora_by_two_keys(tiny_run):
    tiny = tiny_run("numina")
    words = [*tiny.words, "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj", "--max_steps", "1"]
    train(read_recipe("numina_qwen_math_1p5b", words))
    assert (tiny.folder / "run" / "adapter_model.safetensors").exists()


class SignalAtStep(TrainerCallback):
    """Sends this process a signal in the middle of a step."""

    def __init__(self, number, step):
        self.number = number
        self.step = step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)


def test_a_signal_leaves_a_checkpoint_and_the_resumed_run_equals_an_unbroken_one(tiny_run, monkeypatch, capsys):
    tiny = tiny_run("numina")
    common = [*tiny.words, "--target", "sft", "--save_strategy", "no", "--output_dir"]
    train(read_recipe("numina_qwen_math_1p5b", [*common, str(tiny.folder / "whole")]))
    whole = AutoModelForCausalLM.from_pretrained(tiny.folder / "whole").state_dict()
    original = PreparedJob.trainer
    for number in (signal.SIGINT, signal.SIGTERM):
        before = signal.getsignal(number)
        output = tiny.folder / number.name
        with monkeypatch.context() as patch:
            signals = SignalAtStep(number, 2)
            patch.setattr(
                PreparedJob, "trainer", lambda self, callbacks, s=signals: original(self, callbacks=[*callbacks, s])
            )
            train(read_recipe("numina_qwen_math_1p5b", [*common, str(output)]))
        assert signal.getsignal(number) == before
        printed = capsys.readouterr().out
        assert "Stopped after step 3" in printed
        assert not (output / "model.safetensors").exists()
        command = shlex.split(printed.strip().splitlines()[-1])
        assert command[:3] == ["qsft", "train", "numina_qwen_math_1p5b"]
        train(read_recipe(command[2], command[3:]))
        resumed = AutoModelForCausalLM.from_pretrained(output).state_dict()
        assert all(torch.equal(weight, resumed[name]) for name, weight in whole.items())


def test_a_directory_belongs_to_one_run(tiny_run, capsys):
    tiny = tiny_run("numina")
    output = tiny.folder / "run"
    command = ["train", "numina_qwen_math_1p5b", *tiny.words, "--target", "sft", "--save_steps", "2"]
    assert main(command) == 0
    weights = (output / "model.safetensors").read_bytes()
    other = [*command, "--learning_rate", "1e-3"]

    assert main(other) == 2
    message = capsys.readouterr().err
    for way_out in ("--resume_from_checkpoint last", "another --output_dir", "--overwrite"):
        assert way_out in message
    assert (output / "model.safetensors").read_bytes() == weights

    assert main([*other, "--resume_from_checkpoint", "last"]) == 2  # the finished run's, with another learning rate
    assert "learning_rate" in capsys.readouterr().err
    assert main([*other, "--overwrite", "--resume_from_checkpoint", "last"]) == 2
    assert "leave one of them out" in capsys.readouterr().err

    assert main([*other, "--overwrite", "--max_steps", "2"]) == 0
    [earlier] = output.with_name(f"{output.name}.previous").iterdir()
    assert earlier.name in capsys.readouterr().out
    assert (earlier / "model.safetensors").read_bytes() == weights
    assert {path.name for path in earlier.glob("checkpoint-*")} == {"checkpoint-4"}

    assert main([*other, "--resume_from_checkpoint", "last"]) == 0  # from the new run's own step 2, and not the old 4
    state = json.loads((output / "trainer_state.json").read_text())
    rates = {entry["step"]: entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry}
    assert state["global_step"] == 4
    assert max(rates.values()) > 5e-5

    again = [*command, "--resume_from_checkpoint", "last", "--num_train_epochs", "2"]
    assert main(again) == 2
    assert main([*again, "--resume_allow_changed", "learning_rate"]) == 0


@pytest.mark.parametrize(("words", "name"), [([], "run.json"), (["--overwrite"], "checkpoint-2")])
def test_two_runs_do_not_train_in_one_directory_at_once(words, name, tiny_run, held_elsewhere, capsys):
    tiny = tiny_run("numina")
    (tiny.folder / "run" / name).mkdir(parents=True)
    before = sorted(tiny.folder.rglob("*"))
    with held_elsewhere(tiny.folder / "run"):
        assert main(["train", "numina_qwen_math_1p5b", *tiny.words, "--target", "sft", *words]) == 2
    assert "another process is writing to" in capsys.readouterr().err
    assert sorted(tiny.folder.rglob("*")) == before


@pytest.mark.parametrize("words", [["--output_dir", "../.."], ["--output_dir", "..", "--overwrite"]])
def test_an_output_directory_above_the_current_one_is_an_error_and_nothing_in_it_changes(
    words, tiny_run, tmp_path, monkeypatch, capsys
):
    here = tmp_path / "home" / "project" / "src"
    (here / "checkpoint-1").mkdir(parents=True)
    for directory in (here, *here.parents[:2]):
        (directory / "README.md").write_text("mine")
        (directory / "checkpoint-2").mkdir()
    monkeypatch.chdir(here)
    before = sorted(tmp_path.rglob("*"))
    recipe = tmp_path / "home" / "hostile.yaml"
    recipe.write_text((REPO / "recipes" / "numina_qwen_math_1p5b.yaml").read_text())
    assert main(["train", str(recipe), *tiny_run("numina").words, "--target", "sft", *words]) == 2
    assert "contains the current directory" in capsys.readouterr().err
    recipe.unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_overwrite_does_not_move_the_current_directory(tiny_run, tmp_path, monkeypatch, capsys):
    tiny = tiny_run("numina")
    (tmp_path / "here" / "checkpoint-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    command = ["train", "numina_qwen_math_1p5b", *tiny.words, "--target", "sft", "--output_dir", "."]
    assert main([*command, "--overwrite"]) == 2
    assert "--overwrite would move everything in the current directory" in capsys.readouterr().err
    assert (tmp_path / "here" / "checkpoint-1").is_dir()
    assert not (tmp_path / "here.previous").exists()


@pytest.mark.parametrize("requested", ["last", "nosuch"])
def test_a_missing_checkpoint_is_an_error_before_anything_is_loaded(requested, tmp_path, monkeypatch):
    monkeypatch.setattr("qsft.recipe.run.prepare", lambda *_: pytest.fail("the recipe was prepared"))
    words = ["--output_dir", str(tmp_path), "--resume_from_checkpoint", requested]
    with pytest.raises(ValueError, match=r"resume from"):
        train(read_recipe("numina_qwen_math_1p5b", words))


def signaled(command, folder, number):
    """The last line that `command` printed after `number` reached its process group in the middle of training."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,  # as a terminal does: a signal reaches the whole group
    )
    line = next(line for line in process.stdout if "'loss'" in line)
    os.killpg(process.pid, number)
    rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0, line + rest + errors[-3000:]
    assert "Traceback" not in errors
    return rest.splitlines()[-1]


RECIPE = REPO / "recipes" / "numina_qwen_math_1p5b.yaml"
QSFT = [sys.executable, "-m", "qsft"]
LONG = [
    "--num_train_epochs",
    "500",
    "--disable_tqdm",
    "true",
    "--save_strategy",
    "no",
    "--lr_scheduler_type",
    "constant",
]


@pytest.mark.slow
def test_ctrl_c_in_a_terminal(tiny_run):
    tiny = tiny_run("numina")
    command = [sys.executable, str(RECIPE), *tiny.words, "--target", "sft", *LONG]
    assert "--resume_from_checkpoint" in signaled(command, tiny.folder, signal.SIGINT)
    assert list((tiny.folder / "run").glob("checkpoint-*/trainer_state.json"))


@pytest.mark.slow  # losses of two processes: tests/distributed; signals: above
@pytest.mark.distributed
def test_two_processes_do_what_one_does_and_end_well_on_ctrl_c(tiny_run):
    tiny = tiny_run("numina")
    # It becomes `accelerate launch --config_file recipes/accelerate/cpu.yaml -m qsft train …`.
    words = ["train", RECIPE, "--accelerate_config", "cpu", *tiny.words, *LONG]
    printed = shlex.split(signaled([*QSFT, *words], tiny.folder, signal.SIGINT))
    assert printed[:4] == ["qsft", "train", "--accelerate_config", "cpu"]
    assert printed[-2] == "--resume_from_checkpoint"
    assert losses_in(tiny.folder / printed[-1])[:2] == pytest.approx(one_process_losses(tiny), rel=1e-5)


@pytest.mark.slow
@pytest.mark.distributed
def test_the_command_that_two_processes_print_on_ctrl_c_goes_on_until_sigterm(tiny_run):
    tiny = tiny_run("numina")
    words = ["train", RECIPE, "--accelerate_config", "cpu", *tiny.words, "--target", "sft", *LONG]
    printed = shlex.split(signaled([*QSFT, *words], tiny.folder, signal.SIGINT))
    again = shlex.split(signaled([*QSFT, *printed[1:]], tiny.folder, signal.SIGTERM))
    first, second = (int(command[-1].rpartition("-")[2]) for command in (printed, again))
    assert first < second  # it went on from there
    assert json.loads((Path(tiny.folder, again[-1]) / "trainer_state.json").read_text())["global_step"] == second


@pytest.mark.slow
@pytest.mark.distributed
def test_torchrun_does_the_same(tiny_run):
    tiny = tiny_run("numina")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    constant = ["--lr_scheduler_type", "constant"]
    done = run([*torchrun, RECIPE, *tiny.words, "--max_steps", "2", *constant], tiny.folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert losses_in(tiny.folder / "run" / "checkpoint-2") == pytest.approx(one_process_losses(tiny), rel=1e-5)


def losses_in(checkpoint):
    history = json.loads((checkpoint / "trainer_state.json").read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


def one_process_losses(tiny):
    """The losses of the first two steps in this process."""
    folder = tiny.folder / "one"
    words = [*tiny.words, "--max_steps", "2", "--lr_scheduler_type", "constant", "--output_dir", str(folder)]
    train(read_recipe("numina_qwen_math_1p5b", words))
    return losses_in(folder / "checkpoint-2")


def test_a_gpu_recipe_on_a_cpu_raises_with_the_options_to_add():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ValueError, match="--use_cpu true --bf16 false"):
        configure(read_recipe("numina_qwen_math_1p5b"))
