"""A training step: TargetSFTTrainer with a cached top-64 teacher against TRL's SFTTrainer (nll), same model and batch.

A step is collation, forward, backward and optimizer. Steps are interleaved (one of each trainer after the other) and
given as ratios of medians. Peak memory is the high-water mark of `train()` in a fresh process of each (on a GPU: of its
allocator). With a GPU it runs there, in bf16, with TRL's Liger option too if `liger-kernel` is installed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import SFTConfig, SFTTrainer

from benchmarks.measure import DEVICE, GPU, device_name, print_table, status_bytes, wait_for_device, write_json
from qsft import TargetSFTConfig, TargetSFTTrainer

VOCABULARY = 151_936
ROWS = 16
BATCH = 4
TOKENS = 2048 if GPU else 96  # per row
SMALL = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2, "num_attention_heads": 4}
QWEN_0P5B = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
LIGER = "TRL nll with Liger"
LABELED = {"every token": 0, "completions, half of the tokens": TOKENS // 2}
METHODS = ("TRL nll", "qsft sft", "qsft target_sft", *([LIGER] if GPU and find_spec("liger_kernel") else []))


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w1"
    )


def model(seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    shape = QWEN_0P5B if GPU else SMALL
    config = Qwen2Config(
        vocab_size=VOCABULARY, num_key_value_heads=2, tie_word_embeddings=True, pad_token_id=0, **shape
    )
    return Qwen2ForCausalLM(config).to(DEVICE, torch.bfloat16 if GPU else torch.float32)


def rows(prompt: int) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, VOCABULARY, (ROWS, TOKENS), generator=generator).tolist()
    return Dataset.from_dict({"input_ids": ids, "labels": [[-100] * prompt + row[prompt:] for row in ids]})


def make_trainer(method: str, prompt: int, folder: Path) -> SFTTrainer:
    settings = {
        "output_dir": str(folder / "run"), "use_cpu": not GPU, "bf16": GPU, "report_to": [], "max_steps": 3,
        "per_device_train_batch_size": BATCH, "save_strategy": "no", "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    data = {"train_dataset": rows(prompt), "processing_class": tokenizer()}
    if method in ("TRL nll", LIGER):
        return SFTTrainer(model(), SFTConfig(use_liger_kernel=method == LIGER, **settings), **data)
    if method == "qsft sft":
        return TargetSFTTrainer(model(), TargetSFTConfig(target="sft", **settings), **data)
    cache = str(folder / f"cache-{prompt}")
    teacher = None if Path(cache, "manifest.json").is_file() else model(seed=1)
    return TargetSFTTrainer(model(), TargetSFTConfig(teacher_cache=cache, **settings), teacher=teacher, **data)


def stepper(trainer: SFTTrainer) -> Callable[[], None]:
    """One optimizer step per call, as Trainer's loop does it."""
    trainer.create_optimizer()
    trainer.model_wrapped = trainer.model
    trainer.current_gradient_accumulation_steps = 1
    batches = iter(())

    def step() -> None:
        nonlocal batches
        samples, count = trainer.get_batch_samples(batches, 1, trainer.args.device)
        if not samples:
            batches = iter(trainer.get_train_dataloader())
            samples, count = trainer.get_batch_samples(batches, 1, trainer.args.device)
        trainer.training_step(trainer.model, samples[0], count)
        trainer.optimizer.step()
        trainer.model.zero_grad()

    return step


def seconds(call: Callable[[], object]) -> float:
    wait_for_device()
    start = time.perf_counter()
    call()
    wait_for_device()
    return time.perf_counter() - start


def collator_seconds(trainer: TargetSFTTrainer, repeats: int = 20) -> float:
    """What the collator adds to the one it wraps, per batch."""
    features = list(trainer.train_dataset)[:BATCH]
    times: dict[str, list[float]] = {"with teacher": [], "base": []}
    for _ in range(repeats):
        times["with teacher"].append(seconds(lambda: trainer.data_collator(features)))
        times["base"].append(seconds(lambda: trainer.data_collator.base_collator(features)))
    return statistics.median(times["with teacher"]) - statistics.median(times["base"])


def peak_megabytes(method: str, prompt: int, folder: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.bench_step", "--memory", method]
    command += ["--prompt", str(prompt), "--folder", str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(output.splitlines()[-1]))


def peak_bytes(trainer: SFTTrainer) -> int:
    """The high-water mark from here on: a capture that came before is not counted."""
    if GPU:
        torch.cuda.reset_peak_memory_stats()
        trainer.train()
        return torch.cuda.max_memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    trainer.train()
    return status_bytes("VmHWM")


def measure(prompt: int, repeats: int, folder: Path) -> dict[str, dict[str, float]]:
    trainers = {method: make_trainer(method, prompt, folder) for method in METHODS}
    steps = {method: stepper(trainer) for method, trainer in trainers.items()}
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for round_ in range(repeats + 1):  # the first round warms up
        for method in METHODS:
            elapsed = seconds(steps[method])
            if round_:
                times[method].append(elapsed)
    median = {method: statistics.median(values) for method, values in times.items()}
    collator = collator_seconds(trainers["qsft target_sft"])
    del trainers, steps
    peak = {method: peak_megabytes(method, prompt, folder) for method in METHODS}
    return {
        method: {
            "seconds": median[method],
            "time of TRL": median[method] / median["TRL nll"],
            "peak MB": peak[method],
            "peak of TRL": peak[method] / peak["TRL nll"],
            "collator % of step": 100 * collator / median[method] if method == "qsft target_sft" else 0.0,
        }
        for method in METHODS
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output_file", default="benchmarks/results/step.json")
    parser.add_argument("--memory", metavar="METHOD", help="print the peak memory of three training steps, in MB")
    parser.add_argument("--prompt", type=int, default=0, help="tokens per row that are not labeled")
    parser.add_argument("--folder", type=Path, help="directory of the teacher cache")
    args = parser.parse_args(argv)
    if args.memory:
        print(json.dumps(peak_bytes(make_trainer(args.memory, args.prompt, args.folder)) / 2**20))
        return
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, prompt in LABELED.items():
            results[name] = measure(prompt, args.repeats, Path(folder))
            print_table(
                f"step on {device_name()}: {BATCH}×{TOKENS} tokens, V={VOCABULARY:,}, labels on {name}", results[name]
            )
    write_json(args.output_file, results)


if __name__ == "__main__":
    main()
