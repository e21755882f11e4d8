"""Training data as documents: `load_training_data` gives input_ids and labels, and a record of every choice made.

    hub or local rows → demonstrations → documents → drop what is too long → sample → cut to whole batches

A data set that is not one of the paper's is handed on as TRL would get it. The others are tokenised here, so TRL only
truncates or packs: prompt and response apart, joined; loss is on the response and the end token (the base model's eos,
not the template's turn end).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import CONVERSATIONS, PRESETS, document, render
from qsft.data.sources import DEFAULTS, SOURCES, DataSettings, Source, curated_form, find_source
from qsft.files import write_text
from qsft.fingerprints import digest_json
from qsft.targets.view import IGNORED
from qsft.validation import did_you_mean

# File ending → the loader of `datasets` that reads it.
LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}

ROW = "__row__"  # column with the index into the source; taken out again before training


@dataclass(frozen=True)
class TrainingData:
    """Rows ready for the trainer, and the record of where they come from."""

    dataset: Dataset
    manifest: dict[str, Any]

    def write_manifest(self, directory: str | Path) -> None:
        write_text(Path(directory) / "data_manifest.json", json.dumps(self.manifest, ensure_ascii=False) + "\n")


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
            require_trl_form(rows, settings.dataset_name, text_column)
        refuse_unread(settings)
        rows = rows.add_column(ROW, range(len(rows)))
    else:
        rows, choices = _documents(rows, source, settings, tokenizer, num_proc)
        counts["without a demonstration"] = counts["read"] - len(rows)
        rows = _drop_long(rows, settings.max_row_tokens, max_length, num_proc, counts)
        choices |= {"max_row_tokens": settings.max_row_tokens, "max_length": max_length}
    rows = _sample(rows, settings, multiple_of, counts)
    ids = list(rows[ROW])  # indices into the source's split, and a digest to compare two runs by
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
        "row_ids_digest": digest_json(ids),
        "row_ids": ids,
    }
    return TrainingData(rows.remove_columns(ROW), manifest)


def refuse_unread(settings: DataSettings) -> None:
    """Refuse settings that would do nothing; a curated directory was made by a recipe that may go on saying them."""
    if curated_form(settings.dataset_name) is not None:
        return
    unread = [key for key in ("prompt", "response", "max_row_tokens") if getattr(settings, key) != DEFAULTS[key]]
    if unread:
        said = ", ".join(f"{key}={getattr(settings, key)!r}" for key in unread)
        default = " ".join(f"--{key} {DEFAULTS[key] or 'null'}" for key in unread)
        raise ValueError(
            f"{said} has no effect: {settings.dataset_name!r} is none of {', '.join(SOURCES)}, so TRL reads its rows "
            f"as they are. Undo it ({default}), or name its columns with --question_column and --response_column."
        )


def _documents(
    rows: Dataset, source: Source, settings: DataSettings, tokenizer: PreTrainedTokenizerBase, num_proc: int | None
) -> tuple[Dataset, dict[str, Any]]:
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
            why = f"only {len(rows)} rows are left after filtering ({counts})"
            raise ValueError(f"sample_rows={settings.sample_rows}, but {why}. Lower it, or raise max_row_tokens.")
        rows = rows.shuffle(seed=settings.sample_seed).select(range(settings.sample_rows))
        counts["sampled"] = len(rows)
    whole = len(rows) // multiple_of * multiple_of
    if not whole:
        why = f"{len(rows)} rows are left ({counts}), fewer than one global batch of {multiple_of}"
        raise ValueError(f"{why}. Lower global_batch_size, or give more data.")
    counts |= {"beyond the last whole batch": len(rows) - whole, "used": whole}
    return rows.select(range(whole))


def read_rows(where: DataSettings) -> Dataset:
    name, source = where.dataset_name, find_source(where)
    if name is None:
        raise ValueError(f"no data set is given. Set dataset_name to {', '.join(SOURCES)}, a hub id or a local path.")
    place = where.data_dir or (source.hub if source else "") or name
    if Path(place).exists():
        return _local(Path(place), where.dataset_train_split)
    if where.data_dir:
        raise FileNotFoundError(f"data_dir {place!r} does not exist. Give a file or directory with rows of {name!r}.")
    try:
        return load_dataset(
            place, where.dataset_config, split=where.dataset_train_split, revision=where.dataset_revision
        )
    except OSError as error:  # no network, no such data set, no access: the hub's errors are all OSErrors
        raise OSError(
            f"the data set {place!r} could not be loaded from the hub ({type(error).__name__}: {error})."
            f"{did_you_mean(name, SOURCES)} "
            f"Without a network, give the same rows with --data_dir FILE_OR_DIRECTORY ({', '.join(LOADERS)})."
        ) from error


def load_documents(path: str) -> Dataset:
    if not Path(path).exists():
        raise ValueError(f"{path} is not a data set: give a save_to_disk directory, a .parquet or a .jsonl file.")
    rows = _local(Path(path), "train")
    require_columns(rows, ("input_ids", "labels"), path, "For a chat data set use a recipe, which tokenises its rows.")
    return rows


def _local(path: Path, split: str) -> Dataset:
    if path.is_file():
        if path.suffix not in LOADERS:
            raise ValueError(f"cannot read {path}: its name should end in {', '.join(LOADERS)}.")
        _require_train(path, split)
        return load_dataset(LOADERS[path.suffix], data_files=str(path), split="train")
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        stored = load_from_disk(str(path))
        if isinstance(stored, DatasetDict):
            return stored[one_of("dataset_train_split", split, stored)]
        _require_train(path, split)
        return stored
    return load_dataset(str(path), split=split)


def _require_train(path: Path, split: str) -> None:
    """Refuse another split of a place that has one only: its rows would be the training rows under another name."""
    if split != "train":
        raise ValueError(
            f"{path} holds one split, train, so it has no split {split!r}. Leave dataset_train_split and "
            f"dataset_test_split out, or give a directory with a file for each, such as train.jsonl and {split}.jsonl."
        )


def require_columns(rows: Dataset, wanted: Iterable[str], what: str, remedy: str) -> None:
    """Refuse rows that lack a column, naming the columns there are; `a.b` is field b of the struct column a."""
    found = column_names(rows)
    missing = [column for column in wanted if column not in found]
    if missing:
        lacks = f"{what} needs the column{'s' * (len(missing) > 1)} {', '.join(map(repr, missing))}"
        raise ValueError(f"{lacks}, but the rows have {', '.join(found)}. {remedy}")


def require_trl_form(rows: Dataset, name: str | None, text_column: str) -> None:
    """Refuse rows in none of the forms that TRL reads, which would fail there with a bare KeyError."""
    forms = [{"messages"}, {"conversations"}, {"prompt", "completion"}, {"input_ids"}, {text_column}]
    if not any(form <= set(rows.column_names) for form in forms):
        raise ValueError(
            f"training cannot read {name!r} with the columns {', '.join(rows.column_names)}. It reads messages; prompt "
            f"and completion; {text_column} (--dataset_text_field); input_ids and labels; two columns of your own "
            f"(--question_column, --response_column); and a local copy of {', '.join(SOURCES)} with --data_dir FILE."
        )


def column_names(rows: Dataset) -> list[str]:
    """Column names, with the fields of struct columns as column.field."""
    names = []
    for name, feature in rows.features.items():
        names += [name, *(f"{name}.{key}" for key in feature)] if isinstance(feature, dict) else [name]
    return names


def one_of(key: str, value: str, choices: Iterable[str]) -> str:
    if value not in set(choices):
        raise ValueError(f"{key}={value!r} is not known here. Choose one of {', '.join(choices)}.")
    return value
