"""The plan of a recipe before anything is spent: documents, cache, steps, memory per GPU by part and strategy."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qsft.data.sources import SOURCES
from qsft.recipe.dry_run import optimiser_steps
from qsft.recipe.head_cost import head_lines
from qsft.recipe.job import Job, configure
from qsft.recipe.memory import STRATEGIES, Memory, head_bytes
from qsft.recipe.offline import LABEL_TOKENS, known_config
from qsft.recipe.recipe_file import Recipe
from qsft.recipe.rehearsal import Parameter, Rehearsed, Step, rehearse
from qsft.targets.view import IGNORED
from qsft.teacher.encoding import row_bytes

if TYPE_CHECKING:
    from transformers import PretrainedConfig

INDEX_BYTES = 64  # of a cache, per document


@dataclass(frozen=True)
class Corpus:
    """The training rows in numbers; label tokens are None where the data cannot be read yet."""

    documents: int
    longest: int  # tokens of the longest row after truncation
    label_tokens: int | None
    most_labels: int  # label tokens of the row that has most
    note: str = ""
    estimate: bool = False  # the label tokens are a guess


@dataclass(frozen=True)
class Plan:
    """What a recipe will need on the GPUs it was made for."""

    job: Job
    corpus: Corpus
    steps: int | str
    cache_bytes: int | None
    cache_row_bytes: float
    memory: dict[str, Memory]
    full_logits: int
    head_shape: tuple[int, int, int]  # label tokens of a micro-batch at most, hidden size, vocabulary


def make_plan(recipe: Recipe, gpus: int = 1) -> Plan:
    """The plan of a recipe; the model is known by its config alone, no weights are read."""
    job = configure(recipe, processes=gpus)
    config = model_shape(job)
    corpus = survey(job)
    steps = optimiser_steps(job, corpus.documents)
    memory, full_logits = memory_plan(job, config, gpus, corpus)
    text = config.get_text_config()
    head_shape = (corpus.most_labels * job.args.per_device_train_batch_size, text.hidden_size, text.vocab_size)
    cache = cache_bytes(job, config, corpus), cache_row_bytes(job, config)
    return Plan(job, corpus, steps, *cache, memory, full_logits, head_shape)


def model_shape(job: Job) -> "PretrainedConfig":
    """The student's configuration; of the paper's models the shape is known without asking the hub."""
    name = str(job.model.model_name_or_path)
    known = known_config(name) if not Path(name).is_dir() and job.model.model_revision in (None, "main") else None
    return known or job.config


def survey(job: Job) -> Corpus:
    """Count the training rows; where the hub cannot be reached, what was published about the data set."""
    limit = job.args.max_length
    try:
        dataset = job.data.dataset
    except OSError:
        source = SOURCES.get(job.settings.dataset or "")
        if source is None or limit is None:
            raise
        rows = (job.settings.sample_rows or source.rows) // job.rows_per_step * job.rows_per_step
        note = "an estimate, as published: the data could not be read; --data_dir FILE gives exact numbers"
        return Corpus(rows, limit, rows * min(limit, LABEL_TOKENS[source.name]), limit, note, estimate=True)
    if "input_ids" not in dataset.column_names:
        if limit is None:
            raise ValueError(
                "a plan needs max_length, since this data set is tokenised by TRL only when training starts."
            )
        return Corpus(len(dataset), limit, None, limit, "label tokens are known after TRL's preparation")
    lengths = [min(len(ids), limit or len(ids)) for ids in dataset["input_ids"]]
    labels = [sum(label != IGNORED for label in row[:limit]) for row in dataset["labels"]]
    if job.args.packing and limit is not None:  # rows are filled with documents, and all of it may be labels
        return Corpus(len(dataset), limit, sum(labels), limit)
    return Corpus(len(dataset), max(lengths), sum(labels), max(labels))


def cache_bytes(job: Job, config: "PretrainedConfig", corpus: Corpus) -> int | None:
    """Size of the teacher's cache on disk; 0 when the target reads none, None when the label tokens are unknown."""
    if job.target.role is None or job.args.teacher_live:
        return 0
    if corpus.label_tokens is None:
        return None
    return int(corpus.label_tokens * cache_row_bytes(job, config)) + corpus.documents * INDEX_BYTES


def cache_row_bytes(job: Job, config: "PretrainedConfig") -> float:
    return row_bytes(job.args.teacher_cache_encoding, job.args.teacher_top_k, config.get_text_config().vocab_size)


def memory_plan(job: Job, config: "PretrainedConfig", gpus: int, corpus: Corpus) -> tuple[dict[str, Memory], int]:
    """Memory per GPU for every strategy, and for LoRA beside the full training; and what full logits would cost."""
    from trl import get_peft_config

    mixed = torch.bfloat16 if job.args.bf16 else torch.float16 if job.args.fp16 else None
    given = job.model.dtype
    dtype: Any = getattr(torch, given) if given not in (None, "auto") else config.dtype or torch.float32
    step = Step(
        job.args.per_device_train_batch_size, corpus.longest, dtype, mixed, bool(job.args.gradient_checkpointing)
    )
    adapter = get_peft_config(job.model)
    model = rehearse(config, step, adapter)
    table = {name: _filled(name, model, gpus, mixed, job, corpus) for name in STRATEGIES}
    if adapter is None:
        light = rehearse(config, step, get_peft_config(replace(job.model, use_peft=True)))
        table["LoRA + DDP"] = _filled("DDP", light, gpus, mixed, job, corpus)
    return table, model.full_logits


def _filled(name: str, model: Rehearsed, gpus: int, mixed: torch.dtype | None, job: Job, corpus: Corpus) -> Memory:
    tokens = corpus.most_labels * job.args.per_device_train_batch_size
    head = Parameter(*model.head)
    held = head_bytes(head, tokens, job.args.teacher_top_k, mixed or head.dtype)
    return replace(STRATEGIES[name](model, gpus, mixed), activations=model.activations, head=held)


def lines(plan: Plan) -> Iterator[tuple[str, Any]]:
    corpus, args = plan.corpus, plan.job.args
    yield "documents", f"{corpus.documents:,}" + (f" ({corpus.note})" if corpus.note else "")
    if corpus.label_tokens is not None:
        per_document = f"{corpus.label_tokens / corpus.documents:.0f} per document"
        yield "label tokens", f"{corpus.label_tokens:,} ({per_document}{', an estimate' * corpus.estimate})"
    unknown = f"about {plan.cache_row_bytes:.0f} bytes per label token"
    if plan.cache_bytes != 0:
        form = f"top {args.teacher_top_k}, {args.teacher_cache_encoding}"
        bytes_known = unknown if plan.cache_bytes is None else size(plan.cache_bytes)
        yield "teacher cache", f"{bytes_known} ({form}{', an estimate' * corpus.estimate})"
    yield "optimiser steps", f"{plan.steps}"
    per_gpu, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    product = f"{per_gpu} per GPU × {accumulation} accumulation × {plan.job.processes} GPUs"
    yield "batch", f"{product}, rows of at most {corpus.longest} tokens"
    yield from head_lines(*plan.head_shape)
    yield "full logits", f"would have taken {size(plan.full_logits)} instead of the head tile below"


def size(number: float) -> str:
    """Bytes in the largest unit that keeps the number above 1: `1.5 GB` (10⁹, as disks and GPUs are sold)."""
    for unit in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.1f} GB"
