"""Training data as documents: `load_training_data` gives input_ids and labels, and a record of every choice made.

    hub or local rows → demonstrations → documents → drop what is too long → sample → cut to whole batches

A data set that is not one of the paper's is handed on as TRL would get it. The others are tokenised here, so TRL only
truncates or packs: prompt and response apart, joined; loss is on the response and the end token (the base model's eos,
not the template's turn end).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import CONVERSATIONS, PRESETS, document, render
from qsft.data.read import one_of, read_rows, require_columns, require_trl_form
from qsft.data.sources import DEFAULTS, SOURCES, DataSettings, Source, curated_form, find_source
from qsft.files import write_text
from qsft.fingerprints import digest_json
from qsft.targets.view import IGNORED

MANIFEST = "data_manifest.json"
ROW = "__row__"  # column with the index into the source; taken out again before training


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
    rows = read_rows(settings) if rows is None else rows
    counts = {"read": len(rows)}
    choices: dict[str, Any] = {}
    if source is None:
        if text_column is not None:
            require_trl_form(rows, settings.dataset, text_column)
        refuse_unread(settings)
        rows = rows.add_column(ROW, range(len(rows)))
    else:
        rows, choices = _documents(rows, source, settings, tokenizer, num_proc)
        counts["without a demonstration"] = counts["read"] - len(rows)
        rows = _drop_long(rows, settings.max_row_tokens, max_length, num_proc, counts)
        choices |= {"max_row_tokens": settings.max_row_tokens, "max_length": max_length}
    rows = _sample(rows, settings, multiple_of, counts)
    ids = list(rows[ROW])  # indices into the source's split, and a digest to compare two runs by
    made = {"rows": counts, "row_ids_digest": digest_json(ids), "row_ids": ids}
    return TrainingData(rows.remove_columns(ROW), {**_origin(settings, source), **choices, **made})


def refuse_unread(settings: DataSettings) -> None:
    """Refuse settings that would do nothing; a curated directory was made by a recipe that may go on saying them."""
    if curated_form(settings.dataset) is not None:
        return
    unread = [key for key in ("prompt", "response", "max_row_tokens") if getattr(settings, key) != DEFAULTS[key]]
    if unread:
        said = ", ".join(f"{key}={getattr(settings, key)!r}" for key in unread)
        default = " ".join(f"--{key} {DEFAULTS[key] or 'null'}" for key in unread)
        raise ValueError(
            f"{said} would do nothing: the data set {settings.dataset!r} is none of {', '.join(SOURCES)}, so TRL "
            f"renders and cuts its rows as they are. Leave it out, or undo what the recipe says: {default}. Or name "
            "its columns with --question_column and --response_column."
        )


def _documents(
    rows: Dataset, source: Source, settings: DataSettings, tokenizer: PreTrainedTokenizerBase, num_proc: int | None
) -> tuple[Dataset, dict[str, Any]]:
    """The demonstrations as documents, and the choices made."""
    response = one_of("response", settings.response or source.default_response, source.columns)
    remedy = "Name yours with --question_column and --response_column, or give a file that has these with --data_dir."
    require_columns(rows, source.columns[response], f"data set {source.name!r}", remedy)
    prompt = one_of("prompt", settings.prompt, CONVERSATIONS)
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer {tokenizer.name_or_path!r} has no eos token to end a response with.")
    how = {"source": source, "response": response, "prompt": prompt, "tokenizer": tokenizer}
    plain = {"remove_columns": rows.column_names, "num_proc": num_proc, "desc": "Tokenizing"}
    return rows.map(_encode, with_indices=True, batched=True, fn_kwargs=how, **plain), {
        "response": response,
        "columns": list(source.columns[response]),
        "prompt": prompt,
        "prompt_example": _asked(tokenizer, prompt, "{question}"),
        "end_token": tokenizer.eos_token,
        "tokenizer": tokenizer.name_or_path,
    }


def _encode(
    batch: dict[str, list[Any]],
    indices: Sequence[int],
    source: Source,
    response: str,
    prompt: str,
    tokenizer: PreTrainedTokenizerBase,
) -> dict[str, list[Any]]:
    """The documents of a batch of rows, with the index of the row each came from; those without one are left out."""
    rows = (dict(zip(batch, values)) for values in zip(*batch.values()))
    pairs = [(i, pair) for i, row in zip(indices, rows) if (pair := source.demonstration(row, response))]
    if not pairs:
        return {"input_ids": [], "labels": [], ROW: []}
    texts = [_asked(tokenizer, prompt, question) for _, (question, _) in pairs], [answer for _, (_, answer) in pairs]
    prompts, responses = (tokenizer(one, add_special_tokens=False)["input_ids"] for one in texts)
    made = [document(asked, [*ids, tokenizer.eos_token_id]) for asked, ids in zip(prompts, responses)]
    return {**{name: [one[name] for one in made] for name in ("input_ids", "labels")}, ROW: [i for i, _ in pairs]}


def _asked(tokenizer: PreTrainedTokenizerBase, prompt: str, question: str) -> str:
    """The conversation up to the first response token."""
    return render(tokenizer, PRESETS[prompt].prompt(question))  # type: ignore[arg-type]


def _drop_long(
    rows: Dataset, max_row_tokens: int | None, max_length: int | None, num_proc: int | None, counts: dict[str, int]
) -> Dataset:
    """The rows that are short enough and have something to learn from; the others are counted by reason."""
    for reason, limit, keep in (
        ("of max_row_tokens or more", max_row_tokens, lambda row, limit: len(row["input_ids"]) < limit),
        ("prompt fills max_length", max_length, lambda row, limit: bool({*row["labels"][:limit]} - {IGNORED})),
    ):
        if limit is not None:
            kept = rows.filter(keep, fn_kwargs={"limit": limit}, num_proc=num_proc, desc=f"Dropping rows: {reason}")
            counts[reason], rows = len(rows) - len(kept), kept
    return rows


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
