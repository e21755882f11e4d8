"""A tiny student, teacher and data set on disk, the words that point a recipe at them, and the profiler's peak."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config

QWEN = Qwen2Config(
    vocab_size=2000,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=2,
)
LLAMA = LlamaConfig(
    vocab_size=1003,  # a number that no GPU count divides
    hidden_size=96,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    tie_word_embeddings=True,
)


@pytest.fixture(params=[QWEN, LLAMA], ids=["qwen", "llama"])
def config(request):
    """Two small architectures: grouped attention with biases, and a tied head of an odd size."""
    return request.param


@pytest.fixture
def profiled_peak():
    """`profiled_peak(run)`: the most bytes the CPU allocator had handed out while `run` ran."""

    def peak_of(run):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
            run()
        events = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
        live = peak = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        return peak

    return peak_of


@dataclass(frozen=True)
class TinyRun:
    """Where the tiny models and data are, and the overrides that make any recipe a run of seconds on a CPU."""

    folder: Path
    data: Path
    words: list[str]


def tiny_llama(folder, seed, vocab_size, tokenizer):
    """A random Llama: unlike Qwen2's, its directory reloads the tokenizer that was saved with it."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory, tiny_tokenizer):
    """Student, teacher (with a head of another padded size) and 70 rows of every data set."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_llama(folder / "student", 0, 320, tiny_tokenizer)
    tiny_llama(folder / "teacher", 1, 384, tiny_tokenizer)
    rows = []
    for i in range(70):
        question, answer = f"w{i} + w{i + 1} = ?", " ".join(f"w{j}" for j in range(i % 9 + 1))
        rows.append(
            {
                "extra_info": {"question": question, "answer": answer},
                "target": [{"role": "assistant", "content": answer}],
                "distilled_answer_string": answer,
                "reasoning": "w5",
            }
        )
    for name in ("numina", "openr1", "m23k"):
        for i, row in enumerate(rows):
            question = f"w{i} + w{i + 1} = ?"
            row["prompt"] = [{"role": "user", "content": question}] if name == "openr1" else question
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents = [{"input_ids": [4, 5, 6, 7, 2], "labels": [-100, -100, 6, 7, 2]}] * 70
    (folder / "demo.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    return folder


@pytest.fixture
def tiny_run(tiny_files, tmp_path):
    """Factory: `tiny_run("numina")` holds the overrides for a recipe on that data set."""

    def of(dataset):
        data = tiny_files / f"{dataset}.jsonl"
        words = {
            "model_name_or_path": tiny_files / "student",
            "teacher_model_name_or_path": tiny_files / "teacher",
            "teacher_cache": tmp_path / "cache",
            "output_dir": tmp_path / "run",
            "data_dir": data,
            "max_length": 64,
            "global_batch_size": 16,
            "use_cpu": "true",
            "bf16": "false",
            "dtype": "float32",
        }
        if dataset == "openr1":
            words["sample_rows"] = 64
        return TinyRun(tmp_path, data, [word for key, value in words.items() for word in (f"--{key}", str(value))])

    return of
