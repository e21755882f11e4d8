"""Every script of examples/ trains a tiny local model."""

import json
import runpy
from importlib.util import find_spec
from pathlib import Path

import jaxtyping
import pytest
import tiny

EXAMPLES = Path(__file__).parents[2] / "examples"
ON_CPU = "--use_cpu true --bf16 false --max_steps 2 --max_length 64 --logging_steps 1 --report_to none"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with data: chats/train.jsonl, my.jsonl, train.jsonl and test.jsonl."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run them: shapes are not checked
    monkeypatch.chdir(tmp_path)
    questions = [(f"w{i} + w{i + 1} = ?", f" w{i % 9}") for i in range(16)]
    chats = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
        for question, answer in questions
    ]
    (tmp_path / "chats").mkdir()
    write(tmp_path / "chats" / "train.jsonl", chats)
    write(tmp_path / "my.jsonl", [{"problem": question, "solution": answer} for question, answer in questions])
    rows = [{"problem": question, "answer": answer} for question, answer in questions]
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "test.jsonl", rows[:2])
    return tmp_path


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def run_example(folder, tiny_files, monkeypatch):
    """`run_example(name, options)`: run a script in this process; returns the output directory."""

    def run(name, options, student="{files}/student"):
        words = f"{options} --model_name_or_path {student} --output_dir out {ON_CPU}".format(files=tiny_files).split()
        monkeypatch.setattr("sys.argv", [name, *words])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return folder / "out"

    return run


TEACHER = "--teacher_model_name_or_path {files}/teacher"


def test_target_sft_with_its_config(run_example):
    options = f"--config {EXAMPLES}/target_sft.yaml --dataset_name chats {TEACHER} --gradient_accumulation_steps 1"
    out = run_example("target_sft.py", options)
    assert (out / "model.safetensors").is_file()
    assert json.loads((out / "checkpoint-2" / "trainer_state.json").read_text())["global_step"] == 2


def test_lora_with_itself_as_the_teacher(run_example):
    assert (run_example("target_sft_lora.py", "--dataset_name chats") / "adapter_model.safetensors").is_file()


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_qlora(run_example, folder, tiny_tokenizer):
    # On a CPU bitsandbytes needs layers whose sizes are multiples of 32; those of tiny_files are smaller.
    for seed, name in enumerate(("student", "teacher")):
        model = tiny.make_model(seed, "llama", hidden_size=128, num_key_value_heads=4)
        tiny.save(folder / name, model, tiny_tokenizer)
    options = "--dataset_name chats --teacher_model_name_or_path teacher"
    out = run_example("target_sft_qlora.py", options, student="student")
    assert (out / "adapter_model.safetensors").is_file()


def test_own_data(run_example):
    out = run_example("own_data.py", f"--dataset_name my.jsonl {TEACHER}")
    assert (out / "model.safetensors").is_file()


def test_compare_methods_prints_one_line_per_target(run_example, capsys, monkeypatch):
    options = f"--dataset_name train.jsonl --test_file test.jsonl {TEACHER}"
    run_example("compare_methods.py", options)
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("target       Average@4")
    assert [line.split()[0] for line in lines[start + 1 : start + 4]] == ["sft", "dft", "target_sft"]


def test_own_target(run_example):
    assert (run_example("own_target.py", f"--dataset_name chats {TEACHER}") / "model.safetensors").is_file()
