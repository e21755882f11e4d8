"""Rows from the hub, a local file or a local directory, with errors that say what would work instead."""

from collections.abc import Iterable
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk

from qsft.data.sources import SOURCES, DataSettings, find_source
from qsft.targets.did_you_mean import did_you_mean

# File ending → the loader of `datasets` that reads it.
LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}


def read_rows(where: DataSettings) -> Dataset:
    """All rows of the split, as they are stored."""
    name, source = where.dataset, find_source(where)
    if name is None:
        raise ValueError(f"no data set is given. Set `dataset` to {', '.join(SOURCES)}, a hub id or a local path.")
    place = where.data_dir or (source.hub if source else "") or name
    if Path(place).exists():
        return _local(Path(place), where.dataset_split)
    if where.data_dir:
        raise FileNotFoundError(
            f"data_dir {place!r} does not exist. Give a file or directory with the rows of {name!r}."
        )
    return _hub(place, name, where)


def load_documents(path: str) -> Dataset:
    """The data set at `path` that is documents already: it must have input_ids and labels."""
    if not Path(path).exists():
        raise ValueError(f"{path} is not a data set: give a save_to_disk directory, a .parquet or a .jsonl file.")
    rows = _local(Path(path), "train")
    remedy = (
        "A cache is built from tokenised documents; for a chat data set use a recipe, which tokenises as training does."
    )
    require_columns(rows, ("input_ids", "labels"), path, remedy)
    return rows


def _local(path: Path, split: str) -> Dataset:
    """Rows of one file, of a directory of files, or of a directory written by `save_to_disk`."""
    if path.is_file():
        if path.suffix not in LOADERS:
            raise ValueError(f"cannot read {path}: its name should end in {', '.join(LOADERS)}.")
        _require_train(path, split)
        return load_dataset(LOADERS[path.suffix], data_files=str(path), split="train")
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        stored = load_from_disk(str(path))
        if isinstance(stored, DatasetDict):
            return stored[one_of("dataset_split", split, stored)]
        _require_train(path, split)
        return stored
    return load_dataset(str(path), split=split)


def _require_train(path: Path, split: str) -> None:
    """Refuse another split of a place that has one only: its rows would be the training rows under another name."""
    if split != "train":
        raise ValueError(
            f"{path} holds the rows of one split, called train, so it has no split {split!r}. Leave dataset_split and "
            f"eval_split out, or give a directory with a file for each split, such as train.jsonl and {split}.jsonl."
        )


def _hub(place: str, name: str, where: DataSettings) -> Dataset:
    try:
        return load_dataset(place, where.dataset_config, split=where.dataset_split, revision=where.dataset_revision)
    except OSError as error:  # no network, no such data set, no access: the hub's errors are all OSErrors
        raise OSError(
            f"the data set {place!r} could not be loaded from the hub ({type(error).__name__}: {error})."
            f"{did_you_mean(name, SOURCES)} "
            f"Without a network, give the same rows with --data_dir FILE_OR_DIRECTORY ({', '.join(LOADERS)})."
        ) from error


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
            f"the data set {name!r} has the columns {', '.join(rows.column_names)}, which training cannot read. "
            f"It reads messages; prompt and completion; {text_column} (or what --dataset_text_field names); "
            "input_ids and labels; or two columns of your own, named with --question_column and --response_column. "
            f"For a local copy of {', '.join(SOURCES)} keep the recipe's own data set and add --data_dir FILE."
        )


def column_names(rows: Dataset) -> list[str]:
    """Column names, with the fields of struct columns as column.field."""
    names = []
    for name, feature in rows.features.items():
        names += [name, *(f"{name}.{key}" for key in feature)] if isinstance(feature, dict) else [name]
    return names


def one_of(key: str, value: str, choices: Iterable[str]) -> str:
    """`value` if it is a choice; otherwise an error that lists them."""
    if value not in set(choices):
        raise ValueError(f"{key}={value!r} is not known here. Choose one of {', '.join(choices)}.")
    return value
