"""A dry run makes the checks of the real run that need no weights, and starts nothing."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from qsft.cli import main

RECIPE = "numina_qwen_math_1p5b"


def dry_run(*words):
    return main(["train", *map(str, words), "--dry_run"])


def test_the_demos_models_are_not_trained(monkeypatch, capsys):
    from qsft.demo import recipe_functions

    monkeypatch.setattr(recipe_functions, "demo_models", lambda seed: pytest.fail("models were made"))
    assert dry_run("demo") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "rows used 5,120" in printed
    assert "optimizer steps 80" in printed
    assert "qsft.demo.recipe_functions:teacher_model" in printed
    assert "target target_sft (γ = p_y, π̃ ∝ π_θ^0.5·π_T^0.5, scale = 1)" in printed


@pytest.mark.parametrize("command", [["train", "--dry_run"], ["train"], ["cache", "build"], ["sweep", "--dry_run"]])
def test_a_missing_teacher_is_an_error_before_any_work_with_the_option_to_add(
    command, local_words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = local_words(dataset_name="numina", curate='{"method": "self_distill"}')
    at = words.index("--teacher_model_name_or_path")
    del words[at : at + 2]
    words += ["--grid", "target=sft,kd"] if command[0] == "sweep" else ["--target", "kd"]
    monkeypatch.setattr("qsft.recipe.prepare.curate_dataset", lambda *_, **__: pytest.fail("the curation was run"))
    assert main([*command, *words]) == 2
    message = capsys.readouterr().err
    assert "the target kd needs a teacher, but none is given. Add --teacher" in message
    assert "TargetSFTTrainer(" not in message


def test_one_process_is_not_called_processes(local_words, tmp_path, capsys):
    words = local_words(target="sft", output_dir=tmp_path / "run", per_device_train_batch_size=4)
    assert dry_run(RECIPE, *words) == 0
    assert "16 = 4 per device × 4 accumulation × 1 process\n" in capsys.readouterr().out


def test_a_reference_that_is_the_teacher_needs_one_as_well(local_words, tmp_path, capsys):
    words = local_words(target="sft_kl", dataset_name="numina", reference_model_name_or_path="teacher")
    at = words.index("--teacher_model_name_or_path")
    del words[at : at + 2]
    assert dry_run(*words, "--output_dir", tmp_path / "run") == 2
    assert "Add --teacher" in capsys.readouterr().err


def test_other_tokenizers_are_an_error_as_in_the_real_run(tiny_files, local_words, tmp_path, capsys):
    teacher = shutil.copytree(tiny_files / "teacher", tmp_path / "teacher")
    text = (teacher / "tokenizer.json").read_text()
    (teacher / "tokenizer.json").write_text(text.replace('"w1"', '"w1x"'))
    words = local_words(teacher_model_name_or_path=teacher, output_dir=tmp_path / "run")
    assert dry_run(RECIPE, *words) == 2
    assert "tokenizer" in capsys.readouterr().err


def test_a_missing_column_of_the_target_is_an_error(local_words, tmp_path, capsys):
    assert dry_run(RECIPE, *local_words(target="cft", output_dir=tmp_path / "run")) == 2
    assert "'critical'" in capsys.readouterr().err


def test_a_kernel_that_cannot_run_here_is_an_error(local_words, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert dry_run(RECIPE, *local_words(head_kernel="triton", output_dir=tmp_path / "run")) == 2
    assert "triton" in capsys.readouterr().err


def test_a_full_disk_is_an_error_before_anything_starts(local_words, tmp_path, monkeypatch, capsys):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("qsft.recipe.dry_run.shutil.disk_usage", lambda path: usage(1000))
    assert dry_run(RECIPE, *local_words(output_dir=tmp_path / "run")) == 2
    assert "1.0 kB are free" in capsys.readouterr().err


def test_a_curation_is_not_run(local_words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("qsft.recipe.curation.curate", lambda *_: pytest.fail("the curation was run"))
    words = local_words(curate='{"method": "self_distill"}', target="sft", output_dir=tmp_path / "run")
    assert dry_run(RECIPE, *words) == 0
    assert "known after the curation" in capsys.readouterr().out
    assert not Path(tmp_path / "run").exists()


def test_checkpoints_of_another_run_are_an_error_and_stay_where_they_are(local_words, tmp_path, capsys):
    state = tmp_path / "run" / "checkpoint-2" / "trainer_state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    words = local_words(target="sft", output_dir=tmp_path / "run")
    assert dry_run(RECIPE, *words) == 2
    assert "has checkpoints of another run" in capsys.readouterr().err
    assert dry_run(RECIPE, *words, "--overwrite") == 0
    assert state.is_file()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_a_run_for_a_gpu_is_not_promised_without_one(local_words, tmp_path, capsys):
    words = local_words(target="sft", output_dir=tmp_path / "run", use_cpu="false", bf16="true")
    assert dry_run(RECIPE, *words) == 0
    printed = capsys.readouterr().out
    assert "Nothing was trained: this training is in bf16 on a GPU, and no GPU was found." in printed
    assert "leave --dry_run out" not in printed
