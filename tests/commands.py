"""The commands of README and guide as tests run them: small, local, in this process."""

import shlex

from qsft.cli import main

# What is added to a command to make it local and small.
LOCAL = (
    "--model_name_or_path {files}/student --teacher {files}/teacher --max_length 64 --global_batch_size 16 "
    "--dtype float32 --use_cpu true --bf16 false --disable_tqdm true"
)
TINY = LOCAL + " --data_dir {files}/numina.jsonl"
SAMPLES = "--data_dir tasks --num_samples 2 --max_new_tokens 4"
STANDS_FOR = {"NAME": "target_sft", "RECIPE": "numina_qwen_math_1p5b"}

OWN_DATA = "--dataset_name my.jsonl --question_column problem --response_column solution"
OWN = f"--model_name_or_path Qwen/Qwen3-0.6B --teacher Qwen/Qwen3-4B-Instruct-2507 {OWN_DATA}"

# The commands of the pages in an order in which they can run, each with the words that make it small.
RUN = {
    f"qsft explore alignment {OWN}": f"{LOCAL} --num_documents 4",
    f"qsft plan {OWN}": LOCAL,
    f"qsft train {OWN} --output_dir runs/mine": f"{LOCAL} --max_steps 2",
    f"qsft train {OWN} --eta 0.2 --output_dir runs/eta02": f"{LOCAL} --max_steps 2",
    f"qsft train --model_name_or_path Qwen/Qwen3-0.6B {OWN_DATA} --target dft --output_dir runs/mine": (
        f"{LOCAL} --output_dir runs/dft --max_steps 2"
    ),
    f"qsft explore tokens --model_name_or_path Qwen/Qwen3-0.6B --target dft {OWN_DATA}": f"{LOCAL} --num_documents 2",
    "qsft plan numina_qwen_math_1p5b --gpus 8 --gpu_memory 80": TINY,
    "qsft plan numina_qwen_math_1p5b --gpus 8 --train_tokens_per_second 40000 --capture_tokens_per_second 90000": TINY,
    "accelerate launch recipes/numina_qwen_math_1p5b.yaml": TINY,
    "accelerate launch recipes/numina_qwen_math_1p5b.yaml --target sft": TINY,
    "accelerate launch --config_file recipes/accelerate/zero3.yaml recipes/numina_qwen_math_1p5b.yaml": (
        f"{TINY} --output_dir runs/zero3 --dry_run"  # tests/distributed trains with ZeRO
    ),
    "qsft train numina_qwen_math_1p5b --accelerate_config zero3": (
        f"{TINY} --output_dir runs/zero3 --dry_run --num_processes 1"
    ),
    "qsft cache build numina_qwen_math_1p5b": TINY,
    "qsft cache info caches/numina_qwen_math_1p5b": "",
    "qsft cache verify caches/numina_qwen_math_1p5b --teacher Qwen/Qwen2.5-Math-1.5B-Instruct --sample 64": (
        "--teacher {files}/teacher"
    ),
    "qsft eval numina_qwen_math_1p5b": SAMPLES,
    "qsft eval runs/numina_qwen_math_1p5b-sft --tasks math500,aime24 --protocol paper-math": SAMPLES,
    "qsft compare runs/numina_qwen_math_1p5b-sft runs/numina_qwen_math_1p5b-target_sft": "",
    "qsft compare runs/numina_qwen_math_1p5b-sft runs/numina_qwen_math_1p5b-target_sft --paper numina_qwen_math_1p5b": (
        ""
    ),
    "qsft report": "",
    "qsft explore alignment numina_qwen_math_1p5b": f"{TINY} --num_documents 4",
    "qsft explore run runs/numina_qwen_math_1p5b-target_sft": "",
    "qsft train numina_qwen_math_1p5b": f"{TINY} --output_dir runs/again --save_steps 2",
    "qsft train numina_qwen_math_1p5b --resume_from_checkpoint last": f"{TINY} --output_dir runs/again --save_steps 2",
    "qsft eval RECIPE --limit 100 --num_samples 4": SAMPLES,
    # A random model answers nothing right, so every response is taken; tests/curate verifies for real.
    "qsft curate rft numina_qwen_math_1p5b --output_dir data/numina-rft --num_samples 8": (
        f"{TINY} --num_samples 2 --max_new_tokens 64 --temperature 3 --verifier readme:takes_everything"
    ),
    "qsft train numina_qwen_math_1p5b --target sft --dataset_name data/numina-rft": (
        f"{LOCAL} --output_dir runs/numina-rft"
    ),
    "qsft sweep numina_qwen_math_1p5b --grid target=base,sft,dft,kd_hybrid,target_sft": "--dry_run",
    "qsft sweep numina_qwen_math_1p5b --grid target=kd_hybrid,target_sft eta=0.2,0.5,1.0 c=0.2,0.5,0.8,1.0": (
        "--dry_run"
    ),
    "qsft sweep openr1_qwen_math_1p5b --grid target=target_sft_constant,target_sft_mixture c=0.2,0.5,1.0": "--dry_run",
    "qsft eval runs/numina_qwen_math_1p5b-target_sft --tasks questions.jsonl --num_samples 4": (
        f"{SAMPLES} --output_dir evals/own"
    ),
    "qsft eval runs/numina_qwen_math_1p5b-target_sft --rescore": "--output_dir evals/own",
}

# Commands that are only parsed, with the reason.
PARSED_ONLY = {
    "qsft eval runs/numina_qwen_math_1p5b-target_sft --backend vllm "
    "--engine gpu_memory_utilization=0.8 enforce_eager=true": "needs vLLM: tests/vllm samples with it",
    "qsft demo --scenarios": "takes minutes: a slow test of tests/demo runs it",
    "qsft demo --methods rft,star,grape,critical": "takes minutes: a slow test of tests/demo runs it",
    "qsft compare base RUN RUN": "any runs: another command compares two",
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
