"""Training data as documents: `load_training_data` gives input_ids and labels, and a record of every choice made.

    hub or local rows → demonstrations → documents → drop what is too long → sample → cut to whole batches

A data set that is not one of the paper's is handed on as TRL would get it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from qsft.data.encode import ROW, Encoder
from qsft.data.prompts import CONVERSATIONS
from qsft.data.read import one_of, read_rows, require_columns, require_trl_form
from qsft.data.sources import SOURCES, Source, curated_form, find_source
from qsft.files import write_text
from qsft.fingerprints import digest_json
from qsft.targets.view import IGNORED

MANIFEST = "data_manifest.json"


@dataclass
class DataSettings:
    """What to train on; every field is a key of a recipe."""

    dataset: str | None = field(
        default=None,
        metadata={
            "help": "numina, openr1, m23k, demo; or the hub id or path of any data set in one of TRL's formats.",
            "aliases": ["--dataset_name"],  # TRL's names of these keys
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration name of a hub data set."})
    dataset_split: str = field(
        default="train",
        metadata={"help": "Split to train on.", "aliases": ["--dataset_train_split"]},
    )
    dataset_revision: str | None = field(default=None, metadata={"help": "Commit, tag or branch of a hub data set."})
    data_dir: str | None = field(
        default=None,
        metadata={"help": "Local file or directory with the columns of `dataset`, instead of the hub."},
    )
    question_column: str | None = field(
        default=None,
        metadata={"help": "Column of the question, for a data set of your own; with response_column."},
    )
    response_column: str | None = field(default=None, metadata={"help": "Column of the response, likewise."})
    prompt: str = field(
        default="question",
        metadata={
            "help": "question: the question alone, in the tokenizer's own template; boxed: a system turn and the "
            "instruction to put the answer within \\boxed{}; qwen-math: the instruction as the system turn.",
            "choices": CONVERSATIONS,
        },
    )
    response: str | None = field(
        default=None, metadata={"help": "m23k: distilled (the final answer's text) or reasoning (with the reasoning)."}
    )
    max_row_tokens: int | None = field(
        default=None, metadata={"help": "Keep only rows of fewer tokens than this (default: keep all and truncate)."}
    )
    sample_rows: int | None = field(
        default=None, metadata={"help": "Train on this many rows, the first of the shuffled data set (default: all)."}
    )
    sample_seed: int = field(default=42, metadata={"help": "Seed of the shuffle that `sample_rows` draws from."})


_DEFAULTS = {item.name: item.default for item in fields(DataSettings)}


@dataclass(frozen=True)
class TrainingData:
    """Rows ready for the trainer, and the record of where they come from."""

    dataset: Dataset
    manifest: dict[str, Any]

    def write_manifest(self, directory: str | Path) -> Path:
        """Write the record beside the run; its path."""
        path = Path(directory) / MANIFEST
        write_text(path, json.dumps(self.manifest, ensure_ascii=False) + "\n")
        return path


def load_training_data(
    settings: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int | None = None,
    multiple_of: int = 1,
    num_proc: int | None = None,
    rows: Dataset | None = None,
    text_column: str | None = None,
) -> TrainingData:
    """The rows to train on, with input_ids and labels for the paper's data sets.

    max_length   rows whose prompt alone fills it have nothing to learn from and are left out
    multiple_of  the rows are cut to a multiple of it, so that every optimiser step sees a whole global batch
    rows         the stored rows, when the caller has them already
    text_column  what TRL would read as text; given, rows in none of the forms it reads are refused
    """
    source = find_source(settings)
    refuse_unread(settings, source)
    rows = read_rows(settings) if rows is None else rows
    counts = {"read": len(rows)}
    choices: dict[str, Any] = {}
    if source is None:
        if text_column is not None:
            require_trl_form(rows, settings.dataset, text_column)
        rows = rows.add_column(ROW, range(len(rows)))
    else:
        rows, choices = _documents(rows, source, settings, tokenizer, max_length, num_proc, counts)
    rows = _sample(rows, settings, multiple_of, counts)
    manifest = {**_origin(settings, source), **choices, "rows": counts, **_row_ids(rows[ROW])}
    return TrainingData(rows.remove_columns(ROW), manifest)


def refuse_unread(settings: DataSettings, source: Source | None) -> None:
    """Refuse settings that would do nothing; a curated directory was made by a recipe that may go on saying them."""
    if source is not None or curated_form(settings.dataset) is not None:
        return
    unread = [key for key in ("prompt", "response", "max_row_tokens") if getattr(settings, key) != _DEFAULTS[key]]
    if unread:
        said = ", ".join(f"{key}={getattr(settings, key)!r}" for key in unread)
        default = " ".join(f"--{key} {_DEFAULTS[key] or 'null'}" for key in unread)
        raise ValueError(
            f"{said} would do nothing: the data set {settings.dataset!r} is none of {', '.join(SOURCES)}, so TRL "
            f"renders and cuts its rows as they are. Leave it out, or undo what the recipe says: {default}. Or name "
            "its columns with --question_column and --response_column."
        )


def _documents(
    rows: Dataset,
    source: Source,
    settings: DataSettings,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int | None,
    num_proc: int | None,
    counts: dict[str, int],
) -> tuple[Dataset, dict[str, Any]]:
    """The demonstrations as documents, without those that have nothing to learn from, and the choices made."""
    response = one_of("response", settings.response or source.default_response, source.columns)
    require_columns(rows, source.columns[response], f"data set {source.name!r}")
    encode = Encoder(tokenizer, source, settings.prompt, response)
    rows = rows.map(
        encode, with_indices=True, batched=True, remove_columns=rows.column_names, num_proc=num_proc, desc="Tokenizing"
    )
    counts["without a demonstration"] = counts["read"] - len(rows)
    rows = _keep(rows, _fits, settings.max_row_tokens, "of max_row_tokens or more", counts, num_proc)
    rows = _keep(rows, _has_labels, max_length, "prompt fills max_length", counts, num_proc)
    return rows, {**encode.record(), "max_row_tokens": settings.max_row_tokens, "max_length": max_length}


def _keep(
    rows: Dataset,
    test: Callable[..., bool],
    limit: int | None,
    reason: str,
    counts: dict[str, int],
    num_proc: int | None,
) -> Dataset:
    if limit is None:
        return rows
    kept = rows.filter(test, fn_kwargs={"limit": limit}, num_proc=num_proc, desc=f"Dropping rows: {reason}")
    counts[reason] = len(rows) - len(kept)
    return kept


def _fits(row: dict[str, Any], limit: int) -> bool:
    return len(row["input_ids"]) < limit


def _has_labels(row: dict[str, Any], limit: int) -> bool:
    return any(label != IGNORED for label in row["labels"][:limit])


def _sample(rows: Dataset, settings: DataSettings, multiple_of: int, counts: dict[str, int]) -> Dataset:
    """The first `sample_rows` of the shuffled rows (or all, in order), cut to a multiple of the global batch."""
    if settings.sample_rows is not None:
        if settings.sample_rows > len(rows):
            raise ValueError(
                f"sample_rows={settings.sample_rows}, but only {len(rows)} rows are left after filtering ({counts}). "
                "Lower sample_rows, or raise max_row_tokens."
            )
        rows = rows.shuffle(seed=settings.sample_seed).select(range(settings.sample_rows))
        counts["sampled"] = len(rows)
    whole = len(rows) // multiple_of * multiple_of
    if not whole:
        raise ValueError(
            f"{len(rows)} rows are left ({counts}), fewer than one global batch of {multiple_of}. "
            "Lower global_batch_size, or give more data."
        )
    counts["beyond the last whole batch"] = len(rows) - whole
    counts["used"] = whole
    return rows.select(range(whole))


def _origin(settings: DataSettings, source: Source | None) -> dict[str, Any]:
    return {
        "dataset": settings.dataset,
        "from": settings.data_dir or (source.hub if source else "") or settings.dataset,
        "config": settings.dataset_config,
        "split": settings.dataset_split,
        "revision": settings.dataset_revision,
        "sample_rows": settings.sample_rows,
        "sample_seed": settings.sample_seed if settings.sample_rows is not None else None,
    }


def _row_ids(rows: Sequence[int]) -> dict[str, Any]:
    """Indices into the source's split, in the order of the data set, and a digest to compare two runs by."""
    ids = list(rows)
    return {"row_ids_digest": digest_json(ids), "row_ids": ids}
