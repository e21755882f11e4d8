"""`qsft curate` as a user runs it: kills, processes, bad input, and training on what came out."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from datasets import load_from_disk
from kills import kill_after, kill_when, lines_of, rounds
from sum_tasks import HINT, TEMPLATE, clock_rows, write_jsonl

from qsft.cli import main
from qsft.curate.registry import all_methods, describe_settings

CPU_CONFIG = Path(__file__).parents[2] / "recipes" / "accelerate" / "cpu.yaml"
ON_CPU = ("--use_cpu", "true", "--bf16", "false")
BRIEF = ("--max_new_tokens", "14", *ON_CPU)
TRAINING = (*ON_CPU, "--max_steps", "2", "--per_device_train_batch_size", "4", "--save_strategy", "no")
CHECKS = """\
import os
import time

def is_right(response, row):
    return response.endswith("boxed{" + row["answer"] + "}")

def slowly(response, row):
    time.sleep(float(os.environ.get("PAUSE", "0")))
    return is_right(response, row)

def broken(response, row):
    return 1 / (int(row["answer"]) - 3) < 9

def explodes(response, row):
    raise KeyError("answer")

def never(response, row):
    return False
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A user's directory: rows.jsonl and checks.py."""
    write_jsonl(tmp_path / "rows.jsonl", clock_rows())
    (tmp_path / "checks.py").write_text(CHECKS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "checks", raising=False)
    return tmp_path


@pytest.fixture
def curate(here, clock_directory):
    """`qsft curate METHOD … `; the exit code."""

    def run(method, *words, verifier="checks:is_right", data="rows.jsonl"):
        checked = ("--verifier", verifier) if verifier else ()
        words = ("curate", method, "--dataset_name", data, "--model", clock_directory, *checked, *ON_CPU, *words)
        return main([str(word) for word in words])

    return run


def files(directory):
    """All that a run leaves and that must not depend on how it went."""
    kept = [directory / "rows.jsonl", directory / "manifest.json", *sorted((directory / "generations").iterdir())]
    return {path.name: path.read_text(encoding="utf-8") for path in kept}


def rows_of(directory):
    return [json.loads(line) for line in (directory / "rows.jsonl").read_text(encoding="utf-8").splitlines()]


def test_rft_with_the_evaluators_grading_and_training_on_it(curate, here, clock_directory, capsys):
    assert curate("rft", "--output_dir", "rft", "--num_samples", "3", *BRIEF, verifier=None) == 0
    out = capsys.readouterr()
    assert "qsft train --model_name_or_path" in out.out
    assert "correct so far" in out.err
    manifest = json.loads((here / "rft" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["settings"]["num_samples"] == 3
    assert manifest["counts"]["responses"] == 75
    assert 0 < manifest["rates"]["responses that verify"] < 1
    assert load_from_disk(str(here / "rft")).to_list() == rows_of(here / "rft")
    words = ("train", "--model_name_or_path", str(clock_directory), "--target", "sft", "--dataset_name", "rft")
    assert main([*words, "--output_dir", "trained", *TRAINING]) == 0
    assert (here / "trained" / "model.safetensors").is_file()


@pytest.fixture
def started(here, clock_directory):
    """`qsft curate rft` in a process of its own, whose verifier takes its time."""

    def start(*words):
        inputs = ("--dataset_name", "rows.jsonl", "--model", clock_directory, "--verifier", "checks:slowly")
        command = [sys.executable, "-m", "qsft", "curate", "rft", *map(str, (*inputs, *words))]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=here, env={**os.environ, "PAUSE": "0.05"})

    return start


@pytest.mark.slow
def test_killed_and_resumed_it_equals_an_uninterrupted_run(curate, here, started):
    words = ("--num_samples", "4", *BRIEF)
    assert curate("rft", "--output_dir", "whole", *words, verifier="checks:slowly") == 0
    path = here / "killed" / "generations" / "samples.jsonl"
    kept = kill_after(started("--output_dir", "killed", *words), path, 10)
    assert 10 <= kept.count("\n") < 100
    path.write_text(kept + '{"problem": "torn', encoding="utf-8")
    assert curate("rft", "--output_dir", "killed", *words, verifier="checks:slowly") == 0
    assert files(here / "killed") == files(here / "whole")


@pytest.mark.slow
def test_killed_again_and_again_it_equals_an_uninterrupted_run(curate, here, started, tell):
    """Kills at random numbers of records, and one while the data set is written."""
    words = ("--num_samples", "4", *BRIEF)
    assert curate("rft", "--output_dir", "whole", *words, verifier="checks:slowly") == 0
    out = here / "killed"
    kills = 0
    records = []
    path = out / "generations" / "samples.jsonl"
    numbers_of_records = sorted(random.Random(0).sample(range(1, 90), rounds(short=3, long=20)))
    moments = [*numbers_of_records, None]  # None: once there is a part of the data set
    for moment in moments:
        ready = (out / "state.json").is_file if moment is None else lambda most=moment: lines_of(path) >= most
        kills += kill_when(ready, started("--output_dir", "killed", *words)) == -signal.SIGKILL
        records.append(lines_of(path))
    assert curate("rft", "--output_dir", "killed", *words, verifier="checks:slowly") == 0
    assert files(out) == files(here / "whole")
    assert records[0] < records[-1]
    tell(f"curation: {kills} of {len(moments)} starts killed, at {records} of 100 records; resumed bit for bit")


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.parametrize("method", ["rft", "star", "grape", "critical"])
def test_two_processes_equal_one(method, curate, here, clock_directory):
    settings = {
        "rft": ("--num_samples", "2", "--max_new_tokens", "14"),
        "star": ("--hint", HINT, "--max_new_tokens", "14"),
        "grape": ("--columns", "completion,answer"),
        "critical": ("--alternatives", "1", "--max_new_tokens", "14"),
    }[method]
    assert curate(method, "--output_dir", "one", *settings) == 0
    # Not torchrun: it takes a lone `--n` for an abbreviation of its own options.
    launcher = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", str(CPU_CONFIG)]
    launcher += ["--main_process_port", "0"]  # any that is free: two launches at a time would both take 29500
    words = ["curate", method, "--dataset_name", "rows.jsonl", "--model", str(clock_directory), "--output_dir", "two"]
    words += ["--verifier", "checks:is_right", *settings, *ON_CPU]
    # The environment as it is: another PYTHONPATH would compare this checkout with the one that is installed.
    done = subprocess.run([*launcher, "-m", "qsft", *words], cwd=here, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert files(here / "two") == files(here / "one")


def test_star_in_rounds_trains_between_them_and_resumes(curate, here, capsys):
    words = ("--rounds", "2", "--start", "last", "--hint", HINT, *BRIEF, *TRAINING[len(ON_CPU) :])
    assert curate("star", "--output_dir", "star", *words) == 0
    first = files(here / "star")
    assert {"round1.jsonl", "round1-hinted.jsonl", "round2.jsonl"} <= set(first)
    model = here / "star" / "rounds" / "1" / "model" / "model.safetensors"
    trained = model.stat().st_mtime_ns
    (here / "star" / "manifest.json").unlink()
    (here / "star" / "generations" / "round2.jsonl").unlink()
    assert curate("star", "--output_dir", "star", *words) == 0
    assert files(here / "star") == first
    assert model.stat().st_mtime_ns == trained  # a finished round is not trained again
    assert not any("tip" in row["prompt"] + row["completion"] for row in rows_of(here / "star"))


def test_critical_tokens_train_cft(curate, here, clock_directory):
    assert curate("critical", "--output_dir", "critical", "--alternatives", "2", *BRIEF) == 0
    for row in rows_of(here / "critical"):
        assert len(row["critical"]) == len(row["input_ids"]) == len(row["labels"])
    words = ("train", "--model_name_or_path", str(clock_directory), "--target", "cft", "--dataset_name", "critical")
    assert main([*words, "--output_dir", "trained", *TRAINING]) == 0


def test_self_distillation_and_grape_over_data_sets(curate, here):
    assert curate("self_distill", "--output_dir", "own", "--template", TEMPLATE, *BRIEF) == 0
    assert curate("grape", "--output_dir", "grape", "--datasets", "own") == 0
    for row, own in zip(rows_of(here / "grape"), rows_of(here / "own")):
        assert row["candidates"] == ["demonstration", "own"]
        better = own if row["scores"][1] > row["scores"][0] else None
        assert better is None or row["completion"].strip() == own["completion"].strip()


def test_a_recipe_with_the_key_trains_on_curated_rows(here, clock_directory, clock_tokenizer):
    recipe = {
        "model_name_or_path": str(clock_directory),
        "dataset_name": "rows.jsonl",
        "curate": {
            "method": "rft",
            "num_samples": 2,
            "max_new_tokens": 14,
            "originals": False,
            "verifier": "checks:is_right",
        },
        "target": "sft",
        "output_dir": "run",
    }
    lines = [f"{key}: {json.dumps(value)}" for key, value in recipe.items()]
    (here / "mine.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert main(["train", "mine.yaml", *TRAINING, "--dry_run"]) == 0
    assert not (here / "run" / "_curated").exists()  # a dry run generates nothing
    assert main(["train", "mine.yaml", *TRAINING]) == 0
    assert {row["curated"] for row in rows_of(here / "run" / "_curated")} == {"sample"}
    manifest = json.loads((here / "run" / "data_manifest.json").read_text(encoding="utf-8"))
    assert manifest["dataset_name"] == "run/_curated"
    assert manifest["rows"]["read"] == len(rows_of(here / "run" / "_curated"))


def question_pairs():
    """(question, response, gold) of the clock's rows."""
    return [(row["prompt"][8:], row["completion"][1:], row["answer"]) for row in clock_rows()]


def test_a_recipe_of_another_data_set_trains_on_curated_rows(curate, here, clock_directory):
    rows = [{"answer": gold, "extra_info": {"question": q, "answer": text}} for q, text, gold in question_pairs()]
    write_jsonl(here / "pairs.jsonl", rows)
    words = ("--output_dir", "rft", "--num_samples", "2", *BRIEF, "--data_dir", "pairs.jsonl")
    assert curate("rft", *words, data="numina") == 0

    def train(recipe, *more):
        words = ["train", recipe, "--target", "sft", "--dataset_name", "rft", "--output_dir", "trained", *TRAINING]
        words += ["--model_name_or_path", str(clock_directory), "--dtype", "float32", "--global_batch_size", "4"]
        assert main([*words, *more]) == 0
        return json.loads((here / "trained" / "data_manifest.json").read_text(encoding="utf-8"))

    for recipe, void in (
        ("m23k_qwen_1p5b", {"response": "distilled"}),
        ("openr1_qwen_math_1p5b", {"sample_rows": 15000}),
    ):
        manifest = train(recipe)
        assert void.items() <= manifest["set aside"].items()
        assert manifest["sample_rows"] is None
        assert manifest["rows"]["read"] == len(rows_of(here / "rft"))
    manifest = train("openr1_qwen_math_1p5b", "--sample_rows", "8", "--max_steps", "1")  # about these rows
    assert manifest["rows"]["used"] == 8


@pytest.mark.parametrize("source", ["columns", "numina"])
def test_pairs_are_encoded_as_the_papers_sets_are(source, curate, here, clock_tokenizer, judges, monkeypatch):
    from qsft.data.load import load_training_data
    from qsft.data.sources import DataSettings

    monkeypatch.setattr("qsft.curate.curation.Judges", lambda: nullcontext(judges))  # those that run already
    pairs = question_pairs()
    columns = [{"problem": question, "solution": response, "answer": gold} for question, response, gold in pairs]
    numina = [{"answer": gold, "extra_info": {"question": q, "answer": response}} for q, response, gold in pairs]
    write_jsonl(here / "pairs.jsonl", {"columns": columns, "numina": numina}[source])
    words = ("--data_dir", "pairs.jsonl") if source == "numina" else ()
    data = "numina" if source == "numina" else "pairs.jsonl"
    assert curate("rft", "--output_dir", "rft", "--num_samples", "2", *BRIEF, *words, data=data, verifier=None) == 0
    data = load_training_data(DataSettings(dataset_name="rft"), clock_tokenizer).dataset
    first = data[0]
    assert clock_tokenizer.decode(first["input_ids"]) == "<|bos|> 0 + 0 ? first 0 + 0 = 0 so \\boxed{0} <|eos|>"
    assert [label for label in first["labels"] if label != -100] == first["input_ids"][5:]


@pytest.mark.parametrize(
    ("words", "how", "message"),
    [
        (("rft",), {"verifier": "checks:broken"}, "verifier raised ZeroDivisionError"),
        (("rft",), {"verifier": "checks:never"}, "no response of the model was correct"),
        (("rft",), {"verifier": "checks:absent"}, "cannot be loaded"),
        (("rft",), {"verifier": "checks"}, "is not module:function"),
        (("rft", "--gold", "result"), {"verifier": None}, "no column 'result' among the columns prompt, completion"),
        (("star", "--gold", "result"), {}, "no column 'result' among the columns prompt, completion"),
        (("rtf",), {}, "Did you mean 'rft'?"),
        (
            ("rft", "--keap", "3"),
            {},
            "--keap is neither an option of `qsft curate rft` nor a key of a recipe. Did you mean",
        ),
        (("rft", "--keep", "0"), {}, "keep = 0 is out of range"),
        (("rft", "--limit", "0"), {}, "limit = 0 is out of range"),
        (("self_distill", "--template", "again"), {}, "has no {response}, so the model would not see the response"),
        (("rft", "--num_samples", "2", "--temperature", "0.0"), {}, "greedy samples of a prompt are all the same"),
    ],
)
def test_bad_input_raises_with_a_remedy(words, how, message, curate, here, capsys):
    method, *rest = words
    assert curate(method, "--output_dir", "out", "--limit", "8", "--max_new_tokens", "14", *rest, **how) == 2
    assert message in capsys.readouterr().err
    assert not (here / "out" / "manifest.json").exists()


def test_prompts_longer_than_the_context_are_left_out_and_counted(curate, here):
    long = {"prompt": "<|bos|> " + "1 + " * 40 + "1 ?", "completion": " so \\boxed{1}", "answer": "1"}
    write_jsonl(here / "rows.jsonl", [*clock_rows()[:3], long])
    assert curate("rft", "--output_dir", "rft", "--num_samples", "2", *BRIEF) == 0
    counts = json.loads((here / "rft" / "manifest.json").read_text(encoding="utf-8"))["counts"]
    assert (counts["longer than the context"], counts["responses"]) == (1, 6)


def test_other_settings_raise_and_overwrite_moves_the_old_ones_aside(curate, here, capsys):
    words = ("--output_dir", "rft", "--limit", "3", *BRIEF)
    assert curate("rft", *words, "--num_samples", "2") == 0
    before = files(here / "rft")
    assert curate("rft", *words, "--num_samples", "3") == 2
    assert "started with other settings: num_samples was 2, is 3. Choose" in capsys.readouterr().err
    assert curate("star", *words) == 2
    assert "started with other settings: method was 'rft', is 'star'. Choose" in capsys.readouterr().err
    assert files(here / "rft") == before
    assert curate("rft", *words, "--num_samples", "3", "--overwrite") == 0
    assert files(here / "rft.previous" / "1") == before
    assert curate("rft", *words[2:], "--output_dir", ".") == 2
    assert "is not a curated data set" in capsys.readouterr().err


def test_a_start_that_failed_leaves_no_settings_behind(curate, here, capsys):
    words = ("--output_dir", "rft", "--limit", "3", *BRIEF)
    # An error of the method, and an error at the first response.
    assert curate("rft", *words, "--num_samples", "2", "--temperature", "0") == 2
    assert curate("rft", *words, "--num_samples", "1", verifier="checks:explodes") == 2
    assert curate("rft", *words, "--num_samples", "2") == 0
    capsys.readouterr()
    (here / "rft" / "settings.json").write_text("null")
    assert curate("rft", *words, "--num_samples", "2") == 2
    assert "settings.json: not a JSON object" in capsys.readouterr().err
    (here / "rft" / "settings.json").unlink()
    assert curate("rft", *words, "--num_samples", "2") == 2
    assert "has generations but no settings.json" in capsys.readouterr().err


def test_lines_that_are_not_records_are_named(curate, here, capsys):
    words = ("--output_dir", "rft", "--limit", "3", *BRIEF, "--num_samples", "2")
    assert curate("rft", *words) == 0
    (here / "rft" / "manifest.json").unlink()
    path = here / "rft" / "generations" / "samples.jsonl"
    whole = path.read_bytes()
    for broken in (b"null\n", b"{}\n"):
        path.write_bytes(whole + broken)
        assert curate("rft", *words) == 2
        assert "samples.jsonl" in capsys.readouterr().err
    path.write_bytes(whole)
    assert curate("rft", *words) == 0


def test_help_lists_one_method_per_line(capsys):
    with pytest.raises(SystemExit):
        main(["curate", "--help"])
    shown = capsys.readouterr().out.splitlines()
    for name in all_methods():
        assert sum(line.startswith(f"  {name} ") for line in shown) == 1


def test_help_explains_every_setting(capsys):
    for name, method in all_methods().items():
        with pytest.raises(SystemExit):
            main(["curate", name, "--help"])
        shown = capsys.readouterr().out
        assert all(f"--{setting}" in shown for setting in describe_settings(method.settings))
