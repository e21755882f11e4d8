"""Training data as examples: `load_training_data` returns input_ids and labels, and a record of every choice made.

    hub or local rows → demonstrations → documents → drop what is too long → sample → cut to full batches

A data set that is not one of the paper's is handed on as TRL would get it. The others are tokenized here, so TRL only
truncates or packs: prompt and response are tokenized separately and joined; the loss is on the response and the end
token (the base model's eos, not the template's end of turn).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from qsft.data.prompts import CONVERSATIONS, PRESETS, document, render
from qsft.data.rows import check_trl_can_read, read_rows, require_columns
from qsft.data.sources import DEFAULTS, SOURCES, DataSettings, Source, curated_format, find_source
from qsft.files import write_text
from qsft.fingerprints import digest_json
from qsft.targets.view import IGNORED
from qsft.validation import check_choice

logger = logging.get_logger(__name__)

ROW = "__row__"  # column with the index into the source; removed before training


@dataclass(frozen=True)
class TrainingData:
    """Examples ready for the trainer, and the record of where they come from."""

    dataset: Dataset
    manifest: dict[str, Any]

    def write_manifest(self, directory: str | Path) -> None:
        write_text(Path(directory) / "data_manifest.json", json.dumps(self.manifest, ensure_ascii=False) + "\n")


def load_training_data(
    settings: DataSettings,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    max_length: int | None = None,
    multiple_of: int = 1,
    num_proc: int | None = None,
    rows: Dataset | None = None,
    text_column: str | None = None,
) -> TrainingData:
    """Return the examples to train on, with input_ids and labels for the paper's data sets.

    Args:
        settings: what to read.
        tokenizer: the student's. Not needed for a data set that TRL reads itself.
        max_length: examples whose prompt alone has this many tokens have no label left and are dropped.
        multiple_of: the examples are cut to a multiple of it, so that every optimizer step has a complete batch.
        num_proc: processes of `datasets`.
        rows: the stored rows, if the caller has them.
        text_column: the column that TRL reads as text. If given, rows that TRL cannot read are an error.
    """
    source = find_source(settings)
    rows = read_rows(settings) if rows is None else rows
    counts = {"read": len(rows)}
    choices: dict[str, Any] = {}
    notes: list[str] = []
    if source is None:
        if text_column is not None:
            check_trl_can_read(rows, settings.dataset_name, text_column)
        check_no_unused_settings(settings)
        rows = rows.add_column(ROW, range(len(rows)))
    else:
        if tokenizer is None:
            raise ValueError(f"the data set {settings.dataset_name!r} needs a tokenizer.")
        rows, choices = _tokenize_demonstrations(rows, source, settings, tokenizer, num_proc)
        counts["without a demonstration"] = counts["read"] - len(rows)
        rows = _drop_long(rows, settings.max_row_tokens, max_length, num_proc, counts)
        choices |= {"max_row_tokens": settings.max_row_tokens, "max_length": max_length}
    rows = _sample(rows, settings, counts, notes)
    rows = _cut_to_multiple(rows, multiple_of, counts)
    row_ids = list(rows[ROW])
    manifest = {
        "dataset_name": settings.dataset_name,
        "from": settings.data_dir or (source.hub if source else "") or settings.dataset_name,
        "config": settings.dataset_config,
        "split": settings.dataset_train_split,
        "revision": settings.dataset_revision,
        "sample_rows": settings.sample_rows,
        "sample_seed": settings.sample_seed if settings.sample_rows is not None else None,
        **choices,
        "rows": counts,
        "notes": notes,
        "row_ids_digest": digest_json(row_ids),  # two runs are compared by it
        "row_ids": row_ids,  # indices into the source's split
    }
    return TrainingData(rows.remove_columns(ROW), manifest)


def check_no_unused_settings(settings: DataSettings) -> None:
    """Raise ValueError for settings without an effect on a data set that TRL reads itself.

    A directory written by `qsft curate` was made with a recipe that may still set them.
    """
    if curated_format(settings.dataset_name) is not None:
        return
    unused = [key for key in ("prompt", "response", "max_row_tokens") if getattr(settings, key) != DEFAULTS[key]]
    if unused:
        given = ", ".join(f"{key}={getattr(settings, key)!r}" for key in unused)
        defaults = " ".join(f"--{key} {DEFAULTS[key] or 'null'}" for key in unused)
        raise ValueError(
            f"{given} has no effect: {settings.dataset_name!r} is none of {', '.join(SOURCES)}, so TRL reads its rows "
            f"as they are. Undo it ({defaults}), or name its columns with --question_column and --response_column."
        )


def _tokenize_demonstrations(
    rows: Dataset, source: Source, settings: DataSettings, tokenizer: PreTrainedTokenizerBase, num_proc: int | None
) -> tuple[Dataset, dict[str, Any]]:
    """Return the documents of all rows that have a demonstration, and the choices made for the manifest."""
    response = settings.response or source.default_response
    check_choice("response", response, tuple(source.columns))
    remedy = "Name yours with --question_column and --response_column, or give a file that has these with --data_dir."
    name = settings.data_dir or settings.dataset_name
    require_columns(rows, source.columns[response], f"data set {name!r}", remedy)
    check_choice("prompt", settings.prompt, tuple(CONVERSATIONS))
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer {tokenizer.name_or_path!r} has no eos token to end a response with. Set its eos_token and "
            "save it with the model."
        )
    documents = rows.map(
        _encode_batch,
        with_indices=True,
        batched=True,
        remove_columns=rows.column_names,
        fn_kwargs={"source": source, "response": response, "prompt": settings.prompt, "tokenizer": tokenizer},
        num_proc=num_proc,
        desc="Tokenizing",
    )
    choices = {
        "response": response,
        "columns": list(source.columns[response]),
        "prompt": settings.prompt,
        "prompt_example": _render_question(tokenizer, settings.prompt, "{question}"),
        "end_token": tokenizer.eos_token,
        "tokenizer": tokenizer.name_or_path,
    }
    return documents, choices


def _encode_batch(
    batch: dict[str, list[Any]],
    indices: Sequence[int],
    source: Source,
    response: str,
    prompt: str,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, list[Any]]:
    """Return the documents of a batch of rows with the index of each row; rows without a demonstration are dropped."""
    prompts: list[str] = []
    responses: list[str] = []
    kept: list[int] = []
    for index, values in zip(indices, zip(*batch.values())):
        demonstration = source.demonstration(dict(zip(batch, values)), response)
        if demonstration is not None:
            question, answer = demonstration
            prompts.append(_render_question(tokenizer, prompt, question))
            responses.append(answer)
            kept.append(index)
    if not kept:
        return {"input_ids": [], "labels": [], ROW: []}
    prompt_ids = tokenizer(prompts, add_special_tokens=False)["input_ids"]
    response_ids = tokenizer(responses, add_special_tokens=False)["input_ids"]
    documents = [document(before, [*after, tokenizer.eos_token_id]) for before, after in zip(prompt_ids, response_ids)]
    return {
        "input_ids": [one["input_ids"] for one in documents],
        "labels": [one["labels"] for one in documents],
        ROW: kept,
    }


def _render_question(tokenizer: PreTrainedTokenizerBase, prompt: str, question: str) -> str:
    return render(tokenizer, PRESETS[prompt].prompt(question))  # type: ignore[arg-type]


def _drop_long(
    rows: Dataset, max_row_tokens: int | None, max_length: int | None, num_proc: int | None, counts: dict[str, int]
) -> Dataset:
    """Return the documents that are short enough and have a label; the others are counted by reason."""
    if max_row_tokens is not None:
        reason = "of max_row_tokens or more"
        short = rows.filter(
            lambda row: len(row["input_ids"]) < max_row_tokens, num_proc=num_proc, desc=f"Dropping rows: {reason}"
        )
        counts[reason] = len(rows) - len(short)
        rows = short
    if max_length is not None:
        reason = "prompt fills max_length"
        labeled = rows.filter(
            lambda row: any(label != IGNORED for label in row["labels"][:max_length]),
            num_proc=num_proc,
            desc=f"Dropping rows: {reason}",
        )
        counts[reason] = len(rows) - len(labeled)
        rows = labeled
    return rows


def _sample(rows: Dataset, settings: DataSettings, counts: dict[str, int], notes: list[str]) -> Dataset:
    """Return the first `sample_rows` of the shuffled rows, or all rows in order; fewer are used and noted."""
    requested = settings.sample_rows
    if requested is None:
        return rows
    if requested > len(rows):
        note = f"sample_rows={requested:,}, but only {len(rows):,} rows remain after filtering: all of them are used."
        notes.append(note)
        logger.warning(note)
    sampled = rows.shuffle(seed=settings.sample_seed).select(range(min(requested, len(rows))))
    counts["sampled"] = len(sampled)
    return sampled


def _cut_to_multiple(rows: Dataset, multiple_of: int, counts: dict[str, int]) -> Dataset:
    """Return as many rows as make full global batches; the others are counted."""
    used = len(rows) // multiple_of * multiple_of
    if not used:
        raise ValueError(
            f"{len(rows)} rows are left ({counts}), fewer than one global batch of {multiple_of}. Lower "
            "global_batch_size, or give more data."
        )
    counts["after the last full batch"] = len(rows) - used
    counts["used"] = used
    return rows.select(range(used))
