"""The commands of README and guide as tests run them: small, local, in this process."""

import shlex

from qsft.cli import main

# What is added to a command to make it local and small.
LOCAL = (
    "--model_name_or_path {files}/student --teacher_model_name_or_path {files}/teacher "
    "--max_length 64 --global_batch_size 16 --dtype float32 --use_cpu true --bf16 false --disable_tqdm true"
)
TINY = LOCAL + " --data_dir {files}/numina.jsonl"
SAMPLES = "--data_dir tasks --num_samples 2 --max_new_tokens 4"
STANDS_FOR = {"NAME": "target_sft", "RECIPE": "numina_qwen_math_1p5b"}
# Every command of the README, in its blocks and in its prose; one that is missing fails the test that meets it.
README_BLOCKS = {
    "qsft plan numina_qwen_math_1p5b --gpus 8 --gpu_memory 80": TINY,
    "accelerate launch recipes/numina_qwen_math_1p5b.yaml": TINY,
    "accelerate launch recipes/numina_qwen_math_1p5b.yaml --target sft": TINY,
    "accelerate launch --config_file recipes/accelerate/zero3.yaml recipes/numina_qwen_math_1p5b.yaml": (
        f"{TINY} --dry_run"  # tests/distributed trains with ZeRO
    ),
    "qsft train numina_qwen_math_1p5b --accelerate_config zero3": f"{TINY} --dry_run --num_processes 1",
    "qsft eval numina_qwen_math_1p5b": SAMPLES,
    "qsft sweep numina_qwen_math_1p5b --grid target=sft,dft,kd_hybrid,target_sft eta=0.2,0.5,1.0": f"{TINY} --dry_run",
    "qsft cache build numina_qwen_math_1p5b": TINY,
    "qsft cache info caches/numina_qwen_math_1p5b": "",
    "qsft cache verify caches/numina_qwen_math_1p5b --teacher Qwen/Qwen2.5-Math-1.5B-Instruct --sample 64": (
        "--teacher {files}/teacher"
    ),
    "qsft eval runs/numina_qwen_math_1p5b-sft --tasks math500,aime24 --protocol paper-math": SAMPLES,
    "qsft compare runs/numina_qwen_math_1p5b-sft runs/numina_qwen_math_1p5b-target_sft": "",
    "qsft compare runs/numina_qwen_math_1p5b-sft runs/numina_qwen_math_1p5b-target_sft --paper numina_qwen_math_1p5b": (
        ""
    ),
    "qsft report": "",
    "qsft explore targets": "",
    "qsft explore tokens numina_qwen_math_1p5b": f"{TINY} --num_samples 2",
    "qsft explore alignment numina_qwen_math_1p5b": f"{TINY} --num_samples 4",
    "qsft explore run runs/numina_qwen_math_1p5b-target_sft": "",
}
README_PROSE = {
    "qsft targets NAME": "",
    "qsft plan": "--help",  # the block has it whole
    "qsft demo --noise 0": "--quick --targets sft target_sft",
    "qsft demo --worlds": "--help",  # a slow test of tests/demo runs it
    "qsft demo --wrong_teacher": "--quick --targets dft target_sft",
    "qsft explore alignment": "--help",  # the block has it whole
    "qsft curate": "--help",  # the guide has it whole
}


def run(command, extra, files):
    """The exit code of a documented command with words added to it, in the current directory."""
    words = [*(STANDS_FOR.get(word, word) for word in shlex.split(command)), *shlex.split(extra.format(files=files))]
    try:
        return launch(words[2:]) if words[:2] == ["accelerate", "launch"] else main(words[1:])
    except SystemExit as end:  # --help
        return end.code


def launch(words):
    """`accelerate launch` without the seconds it takes to import itself: the launcher here, the recipe in a process."""
    from accelerate.commands.launch import launch_command, launch_command_parser

    launch_command(launch_command_parser().parse_args(["--num_processes", "1", *words]))
    return 0
