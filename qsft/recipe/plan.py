"""The plan of a recipe from metadata alone: documents, cache, steps, memory per GPU by part and strategy.

No weights are read, and no data set is downloaded. Of a local data set at most SURVEYED_ROWS rows are tokenized.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset, load_dataset_builder
from rich.filesize import decimal
from rich.table import Table
from transformers import PretrainedConfig
from trl import get_peft_config

from qsft.data.load import load_training_data
from qsft.data.rows import find_local_dataset
from qsft.data.sources import DataSettings, find_source
from qsft.recipe.job import Job, configure
from qsft.recipe.job_data import load_student_tokenizer, stored_rows
from qsft.recipe.memory import STRATEGIES, Memory, StepShape, StepTrace, head_bytes, trace_step
from qsft.recipe.model_shapes import student_config
from qsft.recipe.recipe_file import Recipe
from qsft.targets.view import IGNORED
from qsft.teacher.format.encoding import bytes_per_label_token
from qsft.train.open_teacher import capture_settings
from qsft.user_functions import is_function_name
from qsft.validation import check_range, counted

INDEX_BYTES = 64  # of a cache, per document
SURVEYED_ROWS = 512  # rows of a local data set that are tokenized to estimate lengths

# Label tokens per example, guessed from the text: worked solutions, reasoning below 3,072 tokens, short answers.
LABEL_TOKENS = {"numina": 400, "openr1": 1700, "m23k": 300}
PROMPT_TOKENS = 150  # guessed for the paper's data sets: the chat template and the question


@dataclass(frozen=True)
class Corpus:
    """The training examples in numbers.

    Args:
        documents: how many there are.
        longest: tokens of the longest example after truncation.
        tokens: tokens of all examples, prompts included; None where the data cannot be read yet.
        label_tokens: label tokens of all examples; None where the data cannot be read yet.
        most_labels: label tokens of the example that has most.
        source: where the numbers come from; empty when every example was counted.
    """

    documents: int
    longest: int
    tokens: int | None
    label_tokens: int | None
    most_labels: int
    source: str = ""

    @property
    def is_estimate(self) -> bool:
        return bool(self.source) and self.label_tokens is not None


@dataclass(frozen=True)
class Plan:
    """What a recipe needs.

    Args:
        job: the job.
        config: the student's configuration.
        corpus: the training examples.
        memory: bytes per GPU by strategy.
        full_logits: bytes that the logits of all positions would take instead of the fused head.
    """

    job: Job
    config: PretrainedConfig
    corpus: Corpus
    memory: dict[str, Memory]
    full_logits: int


def make_plan(recipe: Recipe, gpus: int = 1) -> Plan:
    """Return the plan of a recipe on a number of GPUs."""
    if gpus < 1:
        raise ValueError(f"--gpus must be at least 1, got {gpus}.")
    job = configure(recipe, processes=gpus)
    config = student_config(job)
    corpus = survey_corpus(job)
    memory, full_logits = plan_memory(job, config, corpus)
    return Plan(job, config, corpus, memory, full_logits)


def survey_corpus(job: Job) -> Corpus:
    """Return the training examples in numbers: counted, estimated from a few rows, or as published."""
    settings = job.settings
    if settings.curate is not None:
        raise ValueError(
            "the examples that `curate` makes are not known before it ran. Plan with the curated data set: "
            "--curate null --dataset_name DIR."
        )
    if is_function_name(settings.dataset_name) and settings.data_dir is None:
        return _survey_unread(job, settings.sample_rows or 0, f"made by {settings.dataset_name} when the run starts")
    if find_local_dataset(settings) is not None:
        return _survey_local(job)
    rows, source = _published_rows(settings)
    return _survey_unread(job, rows, source)


def _survey_local(job: Job) -> Corpus:
    """Count the rows of a local data set, and tokenize some of them to estimate lengths."""
    settings = job.settings
    rows = stored_rows(job, settings)
    if find_source(settings) is None and not {"input_ids", "labels"} <= set(rows.column_names):
        count = _whole_batches(min(len(rows), settings.sample_rows or len(rows)), job)
        full = _required_max_length(job)
        return Corpus(count, full, None, None, full, "counted; TRL tokenizes them")
    drawn = rows
    if len(rows) > SURVEYED_ROWS:
        drawn = rows.shuffle(seed=settings.sample_seed).select(range(SURVEYED_ROWS))
    examples = _tokenize(job, drawn)
    limit = job.args.max_length
    lengths = [min(len(ids), limit or len(ids)) for ids in examples["input_ids"]]
    labels = [sum(label != IGNORED for label in row[:limit]) for row in examples["labels"]]
    kept = round(len(rows) * len(examples) / len(drawn))
    documents = _whole_batches(min(kept, settings.sample_rows or kept), job)
    source = "" if len(drawn) == len(rows) else f"estimated from {len(drawn)} of {len(rows):,} rows"
    if not source and settings.sample_rows is None:
        lengths = lengths[:documents]
        labels = labels[:documents]
    tokens = round(sum(lengths) / len(lengths) * documents)
    label_tokens = round(sum(labels) / len(labels) * documents)
    if job.args.packing:  # examples are filled with documents, and all of it may be labels
        full = _required_max_length(job)
        return Corpus(documents, full, tokens, label_tokens, full, source)
    return Corpus(documents, max(lengths), tokens, label_tokens, max(labels), source)


def _tokenize(job: Job, rows: Dataset) -> Dataset:
    """Return the examples of all given rows: the plan itself samples and cuts to full batches."""
    settings = replace(job.settings, sample_rows=None)
    tokenizer = load_student_tokenizer(job)
    max_length = None if job.args.packing else job.args.max_length
    return load_training_data(settings, tokenizer, max_length=max_length, rows=rows).dataset


def _survey_unread(job: Job, rows: int, source: str) -> Corpus:
    """The numbers of a data set that is not read: label tokens as guessed for the paper's, else unknown."""
    settings = job.settings
    limit = _required_max_length(job)
    documents = _whole_batches(min(rows, settings.sample_rows or rows), job)
    guess = LABEL_TOKENS.get(settings.dataset_name or "")
    if guess is None:
        return Corpus(documents, limit, None, None, limit, source)
    tokens = documents * min(limit, PROMPT_TOKENS + guess)
    label_tokens = documents * min(limit, guess)
    return Corpus(documents, limit, tokens, label_tokens, limit, source)


def _published_rows(settings: DataSettings) -> tuple[int, str]:
    """Return how many rows a hub data set has: by its metadata, or as published for the paper's.

    Raises:
        OSError: the hub cannot be reached and nothing is known about the data set.
    """
    source = find_source(settings)
    place = (source.hub if source else "") or str(settings.dataset_name)
    advice = "--data_dir FILE counts local rows"
    try:
        info = load_dataset_builder(place, settings.dataset_config, revision=settings.dataset_revision).info
    except (OSError, ValueError) as error:
        if source is not None and source.rows:
            return source.rows, f"an estimate, as published; {advice}"
        raise OSError(
            f"the metadata of the data set {place!r} could not be read ({type(error).__name__}: {error}). Give local "
            "rows with --data_dir FILE_OR_DIRECTORY, or a file as --dataset_name."
        ) from error
    splits = info.splits or {}
    split = settings.dataset_train_split
    if split not in splits:
        if source is not None and source.rows:
            return source.rows, f"an estimate, as published; {advice}"
        raise ValueError(f"the hub does not say how many rows the split {split!r} of {place!r} has. Use {advice}.")
    return splits[split].num_examples, f"from the data set's metadata; {advice}"


def _whole_batches(rows: int, job: Job) -> int:
    return rows // job.rows_per_step * job.rows_per_step


def _required_max_length(job: Job) -> int:
    if job.args.max_length is None:
        raise ValueError(
            "a plan needs max_length: the data is tokenized only when training starts. Give --max_length N."
        )
    return job.args.max_length


def plan_memory(job: Job, config: Any, corpus: Corpus) -> tuple[dict[str, Memory], int]:
    """Return the memory per GPU by strategy, with LoRA beside a full training, and the bytes of full logits."""
    autocast = None
    if job.args.bf16:
        autocast = torch.bfloat16
    elif job.args.fp16:
        autocast = torch.float16
    dtype: Any = config.dtype or torch.float32
    if job.model.dtype not in (None, "auto"):
        dtype = getattr(torch, str(job.model.dtype))
    step = StepShape(
        batch=job.args.per_device_train_batch_size,
        length=corpus.longest,
        dtype=dtype,
        autocast=autocast,
        checkpointing=bool(job.args.gradient_checkpointing),
    )
    label_positions = corpus.most_labels * step.batch

    def on_each_gpu(strategy: str, trace: StepTrace) -> Memory:
        head = head_bytes(
            label_positions,
            config.hidden_size,
            config.vocab_size,
            trained=trace.head.requires_grad,
            top_k=capture_settings(job.args)["top_k"],
            compute=autocast or trace.head.dtype,
            weight_dtype=trace.head.dtype,
            tile_mib=job.args.head_tile_mib,
        )
        memory = STRATEGIES[strategy](trace, job.processes, autocast)
        return memory._replace(activations=trace.activations, head=head)

    adapter = get_peft_config(job.model)
    trace = trace_step(config, step, adapter)
    # FSDP2, and ZeRO with fp16, compute with weights in the autocast dtype. Otherwise autocast casts the weights and
    # keeps the copies.
    in_autocast = trace
    if autocast is not None and dtype != autocast:
        in_autocast = trace_step(config, step._replace(dtype=autocast), adapter)
    keeps_weights = {"DDP"} if autocast == torch.float16 else {"DDP", "ZeRO-2", "ZeRO-3"}
    table = {name: on_each_gpu(name, trace if name in keeps_weights else in_autocast) for name in STRATEGIES}
    if not job.model.use_peft:
        if in_autocast is not trace:
            table["DDP, bf16 weights"] = on_each_gpu("DDP", in_autocast)
        lora = get_peft_config(replace(job.model, use_peft=True))
        table["LoRA + DDP"] = on_each_gpu("DDP", trace_step(config, step, lora))
    return table, trace.full_logits


@dataclass(frozen=True)
class Throughput:
    """Measured or assumed speeds, over all GPUs.

    Args:
        train_tokens: tokens per second of training, prompts included: `num_tokens` of the log over the time.
        capture_label_tokens: label tokens per second of a capture, as its progress line shows them.
    """

    train_tokens: float | None = None
    capture_label_tokens: float | None = None

    def __post_init__(self) -> None:
        for option, rate in (
            ("--train_tokens_per_second", self.train_tokens),
            ("--capture_tokens_per_second", self.capture_label_tokens),
        ):
            if rate is not None:
                check_range(option, rate, 0, open_low=True)


def plan_lines(plan: Plan, throughput: Throughput | None = None) -> Iterator[tuple[str, Any]]:
    """Yield the lines of a plan as (name, value)."""
    throughput = throughput or Throughput()
    job = plan.job
    corpus = plan.corpus
    estimate = ", an estimate" if corpus.is_estimate else ""
    yield "documents", f"{corpus.documents:,} ({corpus.source})" if corpus.source else f"{corpus.documents:,}"
    if corpus.label_tokens is not None and corpus.documents:
        yield "label tokens", f"{corpus.label_tokens:,} ({corpus.label_tokens / corpus.documents:.0f} each{estimate})"
    if job.target.role is not None and not job.args.teacher_live:
        yield "teacher cache", _cache_size(plan) + estimate
    yield "optimizer steps", job.optimizer_steps(corpus.documents)
    per_gpu = job.args.per_device_train_batch_size
    accumulation = job.args.gradient_accumulation_steps
    product = f"{per_gpu} per GPU × {accumulation} accumulation × {counted(job.processes, 'GPU')}"
    yield "batch", f"{product}, examples of at most {corpus.longest} tokens"
    if job.target.role is not None and not job.args.teacher_live:
        rate = throughput.capture_label_tokens
        yield "capture", _duration(corpus.label_tokens, rate, "label tokens/s", "capture", estimate)
    yield "one epoch", _duration(corpus.tokens, throughput.train_tokens, "tokens/s", "train", estimate)
    yield "full logits", f"would take {decimal(plan.full_logits)} instead of the head below"


def _duration(tokens: int | None, rate: float | None, unit: str, stage: str, estimate: str) -> str:
    """Return how long a number of tokens takes, or what is missing to say so."""
    if tokens is None:
        return "unknown: the tokens are counted when training starts"
    if rate is None:
        return f"{tokens:,} tokens{estimate}; --{stage}_tokens_per_second N prints the hours"
    hours = tokens / rate / 3600
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    return f"{length} at {rate:,.0f} {unit} on all GPUs{estimate}"


def _cache_size(plan: Plan) -> str:
    settings = capture_settings(plan.job.args)
    per_token = bytes_per_label_token(settings["cache_encoding"], settings["top_k"], plan.config.vocab_size)
    size = f"about {per_token:.0f} bytes per label token"
    if plan.corpus.label_tokens is not None:
        size = decimal(int(plan.corpus.label_tokens * per_token) + plan.corpus.documents * INDEX_BYTES)
    return f"{size} (top {settings['top_k']}, {settings['cache_encoding']})"


def memory_table(plan: Plan, gpu_memory: float) -> Table:
    """Return the memory of each strategy by part, and whether it fits a GPU of `gpu_memory` GB."""
    if gpu_memory <= 0:
        raise ValueError(f"--gpu_memory must be positive, got {gpu_memory:g}.")
    caption = "without CUDA's context (0.5-1 GB) and fragmentation"
    table = Table(title=f"memory per GPU, {counted(plan.job.processes, 'GPU')}", caption=caption)
    table.add_column("", no_wrap=True)
    for part in itertools.chain(Memory._fields, ["total"]):
        table.add_column(part, justify="right", no_wrap=True)
    table.add_column(f"fits {gpu_memory:g} GB", no_wrap=True)
    for name, memory in plan.memory.items():
        fits = "yes" if memory.total < gpu_memory * 1e9 else "no"
        table.add_row(name, *(decimal(part) for part in memory), decimal(memory.total), fits)
    return table
