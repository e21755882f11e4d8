"""A run that was interrupted and resumed is the uninterrupted run, bit for bit; another target raises an error."""

import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

RUN = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4, "gradient_accumulation_steps": 2}
CASES = {
    "target_sft": {"target": "target_sft", "teacher_top_k": 8},
    "psft": {"target": "psft", "psft_block_steps": 2},
    "psft inside a block": {"target": "psft", "psft_block_steps": 3},
}

IN_A_NEW_PROCESS = """
import sys, json
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from qsft.train.config import TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer
files, settings, checkpoint = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
trainer = TargetSFTTrainer(
    AutoModelForCausalLM.from_pretrained(files),
    TargetSFTConfig(**settings),
    train_dataset=Dataset.from_json(files + "/rows.jsonl"),
    processing_class=AutoTokenizer.from_pretrained(files),
)
trainer.train(resume_from_checkpoint=checkpoint)
trainer.save_model()
"""


@pytest.fixture
def taught(trainer, data, tiny_model, tmp_path):
    def make(case, **overrides):
        settings = {**RUN, **CASES[case], "teacher_cache": str(tmp_path / "cache"), **overrides}
        teacher = tiny_model(seed=5) if case == "target_sft" else None
        return trainer(data.tokens(), teacher=teacher, **settings)

    return make


@pytest.fixture(scope="module")
def runs():
    return {}


@pytest.fixture
def whole(taught, runs):
    """whole(case): the trainer after an uninterrupted run, the same for every test."""

    def trained(case):
        if case not in runs:
            runs[case] = taught(case)
            runs[case].train()
        return runs[case]

    return trained


@pytest.fixture
def unfinished(whole, tmp_path):
    """unfinished(case): checkpoint-4 in a copy of that run's first half, where the next trainer will write."""

    def copied(case):
        later = shutil.ignore_patterns("checkpoint-8")
        return Path(shutil.copytree(whole(case).args.output_dir, tmp_path / "copy", ignore=later)) / "checkpoint-4"

    return copied


def optimizer_state(made):
    return [value for state in made.optimizer.state_dict()["state"].values() for value in state.values()]


@pytest.mark.parametrize("case", CASES)
def test_resumed_equals_uninterrupted(taught, whole, unfinished, logged, case):
    checkpoint = unfinished(case)
    resumed = taught(case, output_dir=str(checkpoint.parent))
    uninterrupted = whole(case)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert logged(resumed)[4:] == logged(uninterrupted)[4:]
    assert logged(resumed, "num_tokens") == logged(uninterrupted, "num_tokens")
    for mine, other in zip(resumed.model.parameters(), uninterrupted.model.parameters(), strict=True):
        assert mine.equal(other)
    for mine, other in zip(optimizer_state(resumed), optimizer_state(uninterrupted), strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(other))


@pytest.mark.slow
def test_resumed_in_a_new_process(taught, data, tiny_model, tiny_tokenizer, tmp_path):
    files = tmp_path / "files"
    tiny_model().save_pretrained(files)
    tiny_tokenizer.save_pretrained(files)
    data.tokens().to_json(files / "rows.jsonl")
    whole = taught("target_sft")
    whole.train()
    whole.save_model(str(tmp_path / "whole"))
    names = (
        "use_cpu",
        "bf16",
        "report_to",
        "logging_steps",
        "per_device_train_batch_size",
        "learning_rate",
        "max_length",
    )
    names += ("gradient_checkpointing", "dataloader_pin_memory", "disable_tqdm")
    settings = {name: getattr(whole.args, name) for name in names} | RUN
    settings |= {
        "target": "target_sft",
        "teacher_cache": str(tmp_path / "cache"),
        "output_dir": str(tmp_path / "again"),
    }
    argv = [
        sys.executable,
        "-c",
        IN_A_NEW_PROCESS,
        str(files),
        json.dumps(settings),
        f"{whole.args.output_dir}/checkpoint-4",
    ]
    subprocess.run(argv, check=True, capture_output=True, timeout=240)
    mine, other = (load_file(tmp_path / name / "model.safetensors") for name in ("again", "whole"))
    assert mine.keys() == other.keys()
    assert all(mine[name].equal(other[name]) for name in mine)


def test_a_checkpoint_remembers_its_target_and_teacher(whole):
    made = whole("target_sft")
    record = json.loads(Path(made.args.output_dir, "checkpoint-4", "run.json").read_text())
    assert record["name"] == "target_sft"
    assert record["target"] == made.target.record()
    assert record["teacher"] == asdict(made.cache.manifest.identity)
    run = json.loads(Path(made.args.output_dir, "run.json").read_text())
    assert record["id"] == run["id"]
    assert run["trajectory"] == record["trajectory"]
    assert run["trajectory"]["batch"] == 8


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"target_kwargs": {"eta": 0.9}}, "target"),
        ({"target": "kd"}, "target"),
        ({"teacher_top_k": 4}, "teacher"),
    ],
)
def test_another_target_or_teacher_raises_an_error(taught, unfinished, tmp_path, change, what):
    checkpoint = unfinished("target_sft")
    changed = {**change, "output_dir": str(checkpoint.parent)}
    changed |= {"teacher_cache": str(tmp_path / "cache2")} if what == "teacher" else {}
    with pytest.raises(ValueError, match=rf"(?s)trained with a different {what}.*resume_allow_changed="):
        taught("target_sft", **changed).train(resume_from_checkpoint=str(checkpoint))
    allowed = taught("target_sft", resume_allow_changed=["target", "teacher"], max_steps=5, **changed)
    allowed.train(resume_from_checkpoint=True)
    assert allowed.state.global_step == 5


def test_a_checkpoint_of_another_trainer_is_taken(taught, unfinished):
    checkpoint = unfinished("target_sft")
    (checkpoint / "run.json").unlink()
    (checkpoint / "complete.json").unlink()
    again = taught("target_sft", max_steps=5)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert again.state.global_step == 5
