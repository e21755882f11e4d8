"""Every recipe means the same to YAML and Python and is a complete configuration; launch files are accelerate's."""

import ast
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from qsft.recipe.recipe_file import LAUNCH_KEY, read_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
FILES = sorted(RECIPES.glob("*.yaml"))
LAUNCH_LINE = 'if __name__ == "__main__": from qsft.recipe import launch; launch(__file__)'

# The paper's settings: recipe → student, teacher.
SETTINGS = {
    "numina_qwen3_1p7b": ("Qwen/Qwen3-1.7B-Base", "Qwen/Qwen3-4B-Instruct-2507"),
    "numina_qwen_math_1p5b": ("Qwen/Qwen2.5-Math-1.5B", "Qwen/Qwen2.5-Math-1.5B-Instruct"),
    "numina_qwen_math_7b": ("Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-Math-7B-Instruct"),
    "openr1_qwen3_1p7b": ("Qwen/Qwen3-1.7B-Base", "Qwen/Qwen3-4B-Instruct-2507"),
    "openr1_qwen_math_1p5b": ("Qwen/Qwen2.5-Math-1.5B", "Qwen/Qwen2.5-Math-1.5B-Instruct"),
    "openr1_qwen_math_7b": ("Qwen/Qwen2.5-Math-7B", "Qwen/Qwen2.5-Math-7B-Instruct"),
    "m23k_llama_3b": ("meta-llama/Llama-3.2-3B", "meta-llama/Llama-3.2-3B-Instruct"),
    "m23k_llama_8b": ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B-Instruct"),
    "m23k_qwen_1p5b": ("Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-1.5B-Instruct"),
    "m23k_qwen_7b": ("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B-Instruct"),
}
PAPER = {
    "target": "target_sft",
    "target_kwargs": {"eta": 0.5},
    "teacher_top_k": 64,
    "optim": "adamw_torch",
    "learning_rate": 5e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "num_train_epochs": 1,
    "global_batch_size": 256,
    "max_length": 3072,
    "packing": False,
    "seed": 42,
}


def python_meaning(text):
    """What Python's parser makes of a recipe: the annotation of every name, as a literal."""
    statements = ast.parse(text).body
    assert isinstance(statements.pop(), ast.If)
    return {statement.target.id: ast.literal_eval(statement.annotation) for statement in statements}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_yaml_and_python_agree(file):
    text = file.read_text()
    assert text.rstrip().splitlines()[-1] == LAUNCH_LINE
    meaning = yaml.safe_load(text)
    assert meaning.pop(LAUNCH_KEY)
    assert meaning == python_meaning(text)
    assert {key: type(value) for key, value in meaning.items()} == {
        key: type(value) for key, value in python_meaning(text).items()
    }


def test_the_ten_settings_of_the_paper_are_there():
    assert set(SETTINGS) <= {file.stem for file in FILES}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_recipe_is_the_papers_configuration(name):
    values = read_recipe(RECIPES / f"{name}.yaml").values
    student, teacher = SETTINGS[name]
    assert (values["model_name_or_path"], values["teacher_model_name_or_path"]) == (student, teacher)
    assert values["dataset_name"] == name.split("_")[0]
    assert {key: values[key] for key in PAPER} == PAPER


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_recipe_parses_into_the_trainers_configuration(file, tmp_path):
    from qsft.recipe.job import configure

    job = configure(
        read_recipe(file, ["--model_name_or_path", "some/model", "--output_dir", str(tmp_path)]), processes=2
    )
    if job.settings.global_batch_size:
        assert job.global_batch == job.settings.global_batch_size
    assert job.args.target == "target_sft"


@pytest.mark.parametrize("file", sorted(RECIPES.glob("accelerate/*.yaml")), ids=lambda file: file.stem)
def test_launch_configurations_are_accelerates(file):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    config = load_config_from_file(str(file))
    args = launch_command_parser().parse_args(["--config_file", str(file), "recipes/numina_qwen_math_1p5b.yaml"])
    args.nondefault = []
    args, _, _ = _validate_launch_command(args)
    name = file.stem
    assert (
        args.num_processes
        == config.num_processes
        == {"cpu": 2, "single_gpu": 1}.get(name, 16 if "multi" in name else 8)
    )
    assert args.use_deepspeed == ("zero" in name)
    assert args.use_fsdp == ("fsdp2" in name)
    assert args.multi_gpu == (name in ("ddp", "cpu"))
    if "zero3" in name:
        assert args.zero3_save_16bit_model
        assert args.zero_stage == 3
    if "fsdp2" in name:
        assert (args.fsdp_version, args.fsdp_state_dict_type) == (2, "FULL_STATE_DICT")


SLURM = {  # what the script calls: the names of two hosts, and one task on each of them
    "scontrol": "printf 'node-a\\nnode-b\\n'",
    "srun": 'shift; for SLURM_NODEID in 0 1; do export SLURM_NODEID; "$@"; done',
    "qsft": "printf '%s|' \"$@\"; echo",
}


def test_the_slurm_script_starts_one_launcher_per_node_and_keeps_words_whole(tmp_path):
    for name, body in SLURM.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "node-[a-b]"}
    words = ["recipes/x.yaml", "--output_dir", "two words", "--target_kwargs", '{"eta": 0.5}']
    done = subprocess.run(
        ["bash", RECIPES / "slurm" / "train.sbatch", *words],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    for node, line in zip((0, 1), done.stdout.splitlines(), strict=True):
        got = line.split("|")[:-1]
        assert got[:6] == ["train", *words]
        assert dict(zip(got[6::2], got[7::2])) == {
            "--accelerate_config": "multi_node_fsdp2",
            "--num_machines": "2",
            "--num_processes": "16",
            "--machine_rank": str(node),
            "--main_process_ip": "node-a",
            "--main_process_port": "29500",
        }
