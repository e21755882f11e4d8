"""The plan of a recipe before anything is spent: documents, cache, steps, memory per GPU by part and strategy."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.filesize import decimal
from rich.table import Table
from transformers import AutoConfig, PretrainedConfig
from trl import get_peft_config

from qsft.data.sources import SOURCES
from qsft.recipe.head_cost import head_bytes, head_lines
from qsft.recipe.job import Job, configure
from qsft.recipe.memory import STRATEGIES, Memory, Rehearsed, Step, rehearse
from qsft.recipe.recipe_file import Recipe
from qsft.targets.view import IGNORED
from qsft.teacher.format.encoding import bytes_per_label_token
from qsft.train.teacher import capture_settings

INDEX_BYTES = 64  # of a cache, per document

# As in the models' own config.json.
KEYS = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "vocab_size", "tie_word_embeddings")  # fmt: skip
QWEN_1P5B = ("qwen2", 1536, 28, 12, 2, 8960, 151_936, True)
QWEN_7B = ("qwen2", 3584, 28, 28, 4, 18_944, 152_064, False)
SHAPES = {
    "Qwen/Qwen2.5-Math-1.5B": QWEN_1P5B,
    "Qwen/Qwen2.5-1.5B": QWEN_1P5B,
    "Qwen/Qwen2.5-Math-7B": QWEN_7B,
    "Qwen/Qwen2.5-7B": QWEN_7B,
    "Qwen/Qwen3-1.7B-Base": ("qwen3", 2048, 28, 16, 8, 6144, 151_936, True),
    "meta-llama/Llama-3.2-3B": ("llama", 3072, 28, 24, 8, 8192, 128_256, True),
    "meta-llama/Llama-3.1-8B": ("llama", 4096, 32, 32, 8, 14_336, 128_256, False),
}

# Label tokens per row, guessed from the kind of text: worked solutions, reasoning below 3,072 tokens, short answers.
LABEL_TOKENS = {"numina": 400, "openr1": 1700, "m23k": 300}


class Corpus(NamedTuple):
    """The training rows in numbers; label tokens are None where the data cannot be read yet."""

    documents: int
    longest: int  # tokens of the longest row after truncation
    label_tokens: int | None
    most_labels: int  # label tokens of the row that has most
    note: str = ""
    estimate: bool = False  # the label tokens are a guess


class Plan(NamedTuple):
    """What a recipe will need on the GPUs it was made for."""

    job: Job
    config: PretrainedConfig
    corpus: Corpus
    memory: dict[str, Memory]  # per GPU, by strategy
    full_logits: int
    head: tuple[int, int, int]  # label tokens of a micro-batch at most, hidden size, vocabulary


def make_plan(recipe: Recipe, gpus: int = 1) -> Plan:
    """The plan of a recipe; the model is known by its config alone, no weights are read."""
    if gpus < 1:
        raise ValueError(f"--gpus {gpus} must be positive.")
    job = configure(recipe, processes=gpus)
    # Of the paper's models the shape is known without asking the hub.
    known = job.student in SHAPES and not Path(job.student).is_dir() and job.model.model_revision in (None, "main")
    config = (known_config(job.student) if known else job.of_the_student(AutoConfig)).get_text_config()
    corpus = survey(job)
    head = corpus.most_labels * job.args.per_device_train_batch_size, config.hidden_size, config.vocab_size
    return Plan(job, config, corpus, *memory_plan(job, config, corpus.longest, head), head)


def known_config(model: str) -> PretrainedConfig:
    shape: dict[str, Any] = dict(zip(KEYS, SHAPES[model]))
    return AutoConfig.for_model(**shape, head_dim=128, dtype="bfloat16")


def survey(job: Job) -> Corpus:
    """Count the training rows; where the hub cannot be reached, what was published about the data set."""
    limit = job.args.max_length
    try:
        dataset = job.data.dataset
    except OSError:
        source = SOURCES.get(job.settings.dataset_name or "")
        if source is None or limit is None:
            raise
        rows = (job.settings.sample_rows or source.rows) // job.rows_per_step * job.rows_per_step
        note = "an estimate, as published: the data could not be read; --data_dir FILE gives exact numbers"
        return Corpus(rows, limit, rows * min(limit, LABEL_TOKENS[source.name]), limit, note, estimate=True)
    if "input_ids" not in dataset.column_names:
        if limit is None:
            raise ValueError("a plan needs max_length: TRL tokenises this data set only when training starts.")
        return Corpus(len(dataset), limit, None, limit, "label tokens are known after TRL's preparation")
    lengths = [min(len(ids), limit or len(ids)) for ids in dataset["input_ids"]]
    labels = [sum(label != IGNORED for label in row[:limit]) for row in dataset["labels"]]
    if job.args.packing and limit is not None:  # rows are filled with documents, and all of it may be labels
        return Corpus(len(dataset), limit, sum(labels), limit)
    return Corpus(len(dataset), max(lengths), sum(labels), max(labels))


def memory_plan(job: Job, config: Any, longest: int, head: tuple[int, int, int]) -> tuple[dict[str, Memory], int]:
    """Memory per GPU for every strategy, and for LoRA beside the full training; and what full logits would cost."""
    args, given = job.args, job.model.dtype
    mixed = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else None
    dtype: Any = getattr(torch, given) if given not in (None, "auto") else config.dtype or torch.float32
    step = Step(args.per_device_train_batch_size, longest, dtype, mixed, bool(args.gradient_checkpointing))

    def on_each_gpu(strategy: str, model: Rehearsed) -> Memory:
        held = head_bytes(
            *head,
            trained=model.head.requires_grad,
            top_k=capture_settings(args)["top_k"],
            compute=mixed or model.head.dtype,
        )
        return STRATEGIES[strategy](model, job.processes, mixed)._replace(activations=model.activations, head=held)

    model = rehearse(config, step, get_peft_config(job.model))
    table = {name: on_each_gpu(name, model) for name in STRATEGIES}
    if not job.model.use_peft:
        light = rehearse(config, step, get_peft_config(replace(job.model, use_peft=True)))
        table["LoRA + DDP"] = on_each_gpu("DDP", light)
    return table, model.full_logits


def plan_lines(plan: Plan) -> Iterator[tuple[str, Any]]:
    job, corpus, args = plan.job, plan.corpus, plan.job.args
    guess = ", an estimate" * corpus.estimate
    yield "documents", f"{corpus.documents:,}" + (f" ({corpus.note})" if corpus.note else "")
    if corpus.label_tokens is not None:
        per_document = f"{corpus.label_tokens / corpus.documents:.0f} per document"
        yield "label tokens", f"{corpus.label_tokens:,} ({per_document}{guess})"
    if job.target.role is not None and not args.teacher_live:
        settings = capture_settings(args)
        row = bytes_per_label_token(settings["cache_encoding"], settings["top_k"], plan.config.vocab_size)
        known = f"about {row:.0f} bytes per label token"
        if corpus.label_tokens is not None:
            known = decimal(int(corpus.label_tokens * row) + corpus.documents * INDEX_BYTES)
        yield "teacher cache", f"{known} (top {settings['top_k']}, {settings['cache_encoding']}{guess})"
    yield "optimiser steps", job.optimiser_steps(corpus.documents)
    per_gpu, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    product = f"{per_gpu} per GPU × {accumulation} accumulation × {job.processes} GPUs"
    yield "batch", f"{product}, rows of at most {corpus.longest} tokens"
    yield from head_lines(*plan.head)
    yield "full logits", f"would have taken {decimal(plan.full_logits)} instead of the head tile below"


def memory_table(plan: Plan, gpu_memory: float) -> Table:
    if gpu_memory <= 0:
        raise ValueError(f"--gpu_memory {gpu_memory:g} must be positive.")
    caption = "without CUDA's context (0.5-1 GB) and fragmentation"
    table = Table(title=f"memory per GPU, {plan.job.processes} GPUs", caption=caption)
    parts = [name.replace("head", "head tile") for name in Memory._fields]
    for column in ("", *parts, "total", f"fits {gpu_memory:g} GB"):
        table.add_column(column, justify="right" if column in (*parts, "total") else "left", no_wrap=True)
    for name, memory in plan.memory.items():
        fits = "yes" if memory.total < gpu_memory * 1e9 else "no"
        table.add_row(name, *(decimal(part) for part in (*memory, memory.total)), fits)
    return table
