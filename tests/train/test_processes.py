"""Two processes with half the batch log what one process logs: losses, metrics, token counts."""

import json
import os
import runpy
import socket
import subprocess
import sys

import pytest

RUN = """
import json, sys
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from qsft.processes import exit_process
from qsft.train.config import TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer
world, settings = sys.argv[1], json.loads(sys.argv[2])
trainer = TargetSFTTrainer(
    AutoModelForCausalLM.from_pretrained(world + "/student"),
    TargetSFTConfig(**settings),
    train_dataset=Dataset.from_json(world + "/rows.jsonl"),
    processing_class=AutoTokenizer.from_pretrained(world + "/student"),
    teacher=world + "/teacher" if settings["target"] != "psft" else None,
)
trainer.train()
if trainer.is_world_process_zero():
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    with open(settings["output_dir"] + "/history.json", "w") as file:
        json.dump({"world": trainer.accelerator.num_processes, "history": history}, file)
trainer.accelerator.wait_for_everyone()
trainer.accelerator.end_training()
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
    exit_process(0)
"""


@pytest.fixture
def world(data, tiny_model, tiny_tokenizer, tmp_path):
    for name, seed in (("student", 0), ("teacher", 5)):
        tiny_model(seed=seed).save_pretrained(tmp_path / name)
        tiny_tokenizer.save_pretrained(tmp_path / name)
    data.tokens().to_json(tmp_path / "rows.jsonl")
    (tmp_path / "run.py").write_text(RUN)
    return tmp_path


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def run(world, processes, **settings):
    """What `processes` processes logged; one runs in this process, which has everything imported already."""
    out = world / f"run-{processes}"
    settings = {
        "use_cpu": True, "bf16": False, "report_to": [], "logging_steps": 1, "max_steps": 5, "save_strategy": "no",
        "gradient_accumulation_steps": 2, "disable_tqdm": True, "gradient_checkpointing": False, "teacher_top_k": 8,
        "learning_rate": 1e-3, "dataloader_pin_memory": False, "output_dir": str(out), **settings,
    }  # fmt: skip
    out.mkdir()
    argv = [str(world / "run.py"), str(world), json.dumps(settings)]
    if processes == 1:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", argv)
            runpy.run_path(argv[0])
    else:
        argv = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes), "--master_port", free_port(), *argv]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=400, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((out / "history.json").read_text())
    assert result["world"] == processes
    return result["history"]


@pytest.mark.distributed
@pytest.mark.parametrize("target", ["target", "psft"])
def test_two_processes_are_one(world, target):
    one = run(world, 1, target=target, per_device_train_batch_size=4)
    two = run(world, 2, target=target, per_device_train_batch_size=2)
    for single, double in zip(one, two, strict=True):
        assert double["num_tokens"] == single["num_tokens"]
        for name in ("loss", "label_loss", "gamma", "entropy", "grad_norm", "mean_token_accuracy"):
            assert double[name] == pytest.approx(single[name], rel=1e-4), name
