"""Tokens that a user gives as options are in no file that a command writes, and in nothing that it prints."""

import json

import pytest

from qsft.cli import main
from qsft.experiments import sweep as sweep_module

RECIPE = "numina_qwen_math_1p5b"
SECRETS = {
    "hub_token": "hf_SecretOfTheHub00001",
    "model": "hf_SecretOfTheModel002",
    "teacher": "hf_SecretOfTheTeacher3",
    "environment": "hf_SecretOfTheShell004",
}


@pytest.fixture
def secret_words(local_words, tmp_path, monkeypatch):
    """Overrides of a tiny recipe with a secret in every place a user can set one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", SECRETS["environment"])
    return [
        *local_words(max_steps=2, save_steps=1),
        *("--hub_token", SECRETS["hub_token"]),
        f'--model_init_kwargs={{"token": "{SECRETS["model"]}"}}',
        f"--teacher_model_init_kwargs.token={SECRETS['teacher']}",
    ]


def assert_no_secret(folder, captured):
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert files
    for secret in SECRETS.values():
        leaks = [str(file.relative_to(folder)) for file in files if secret.encode() in file.read_bytes()]
        assert leaks == []
        assert secret not in captured.out + captured.err


def test_train_eval_and_explore(secret_words, tmp_path, capfd):
    assert main(["train", RECIPE, *secret_words, "--dry_run"]) == 0
    assert main(["train", RECIPE, *secret_words]) == 0
    (tmp_path / "sums.jsonl").write_text('{"problem": "w1 + w2 = ?", "answer": "3"}\n')
    run = f"runs/{RECIPE}-target_sft"
    assert main(["eval", run, "--tasks", "sums.jsonl", "--num_samples", "2", "--max_new_tokens", "4"]) == 0
    assert main(["explore", "tokens", RECIPE, *secret_words, "--num_documents", "2", "--json", "tokens.json"]) == 0
    assert main(["explore", "run", run]) == 0
    record = json.loads((tmp_path / run / "recipe.json").read_text())
    assert record["values"]["hub_token"] == "<redacted>"
    assert_no_secret(tmp_path, capfd.readouterr())


def test_sweep(secret_words, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(sweep_module, "run_child", lambda command: (main(command[3:]), False))
    (tmp_path / "sums.jsonl").write_text('{"problem": "w1 + w2 = ?", "answer": "3"}\n')
    words = ["sweep", RECIPE, "--grid", "target=sft", "--eval", "--tasks sums.jsonl --max_new_tokens 4", *secret_words]
    assert main(words) == 0
    assert main(words) == 0  # the redacted record agrees with the command line
    assert_no_secret(tmp_path, capfd.readouterr())


def test_curate(secret_words, tmp_path, capfd):
    (tmp_path / "accept_all.py").write_text("def is_right(response, row):\n    return True\n")
    options = ["--verifier", "accept_all:is_right", "--num_samples", "4", "--max_new_tokens", "64", "--limit", "4"]
    assert main(["curate", "self_distill", RECIPE, "--output_dir", "curated", *options, *secret_words]) == 0
    assert (tmp_path / "curated" / "state.json").is_file()
    assert_no_secret(tmp_path, capfd.readouterr())
