"""Rows as they are stored: where they are, reading them from a local path or the hub, and checks of their columns."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from pyarrow import ArrowInvalid

from qsft.data.sources import SOURCES, DataSettings, find_source
from qsft.validation import check_choice, did_you_mean

# File ending → the loader of `datasets` that reads it.
LOADERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv", ".arrow": "arrow"}


def find_local_dataset(settings: DataSettings) -> Path | None:
    """Return the file or directory that the rows are read from; None for a hub data set.

    Raises:
        FileNotFoundError: `data_dir` does not exist, or `dataset_name` names a file that does not.
        ValueError: no data set is given.
    """
    name = settings.dataset_name
    if settings.data_dir is not None:
        if not Path(settings.data_dir).exists():
            raise FileNotFoundError(
                f"data_dir {settings.data_dir!r} does not exist. Give a file or directory with rows of {name!r}."
            )
        return Path(settings.data_dir)
    if name is None:
        raise ValueError(f"no data set is given. Set dataset_name to {', '.join(SOURCES)}, a hub id or a local path.")
    if name in SOURCES:
        return None
    if Path(name).exists():
        return Path(name)
    if Path(name).suffix in LOADERS or name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise FileNotFoundError(f"there is no file or directory {name!r} (dataset_name). Check the path.")
    return None


def read_rows(settings: DataSettings) -> Dataset:
    """Return the rows of a data set as they are stored, from a local path or the hub."""
    path = find_local_dataset(settings)
    if path is not None:
        return _read_local(path, settings.dataset_train_split)
    source = find_source(settings)
    name = str(settings.dataset_name)
    hub_id = (source.hub if source else "") or name
    try:
        return load_dataset(
            hub_id, settings.dataset_config, split=settings.dataset_train_split, revision=settings.dataset_revision
        )
    except OSError as error:  # no network, no such data set, no access: the hub's errors are all OSErrors
        not_local = "" if source else f" There is no local file or directory {name!r} either."
        raise OSError(
            f"the data set {hub_id!r} could not be loaded from the hub ({type(error).__name__}: {error}).{not_local}"
            f"{did_you_mean(name, SOURCES)} "
            f"Without a network, give the same rows with --data_dir FILE_OR_DIRECTORY ({', '.join(LOADERS)})."
        ) from error


def load_documents(path: str) -> Dataset:
    """Return a tokenized data set: input_ids and labels."""
    if not Path(path).exists():
        raise ValueError(f"{path} is not a data set: give a save_to_disk directory, a .parquet or a .jsonl file.")
    rows = _read_local(Path(path), "train")
    require_columns(rows, ("input_ids", "labels"), path, "For a chat data set use a recipe, which tokenizes its rows.")
    return rows


def _read_local(path: Path, split: str) -> Dataset:
    if path.is_file():
        if path.suffix not in LOADERS:
            raise ValueError(f"cannot read {path}: its name should end in {', '.join(LOADERS)}.")
        _check_only_split(path, split)
        with _damage_explained(path):
            rows = load_dataset(LOADERS[path.suffix], data_files=str(path), split="train")
            rows.data.validate(full=True)  # bytes that are not UTF-8 are read, but cannot be used
            return rows
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        stored = load_from_disk(str(path))
        if isinstance(stored, DatasetDict):
            check_choice("dataset_train_split", split, tuple(map(str, stored)))
            return stored[split]
        _check_only_split(path, split)
        return stored
    with _damage_explained(path):
        return load_dataset(str(path), split=split)


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Turn the errors of `datasets` for content that it cannot read into a ValueError that names the file."""
    try:
        yield
    except (DatasetGenerationError, UnicodeDecodeError, StopIteration, ArrowInvalid) as error:
        why = str(error.__cause__ or error).strip() or "it has no rows"
        raise ValueError(
            f"the data set {path} cannot be read: {why}. Check that the file is complete, and that it is what its name "
            "says (.jsonl: one JSON object per line, in UTF-8)."
        ) from error


def _check_only_split(path: Path, split: str) -> None:
    """Raise ValueError for another split of a file that has one: its rows would be the training rows again."""
    if split != "train":
        raise ValueError(
            f"{path} holds one split, train, so it has no split {split!r}. Leave dataset_train_split and "
            f"dataset_test_split out, or give a directory with a file for each, such as train.jsonl and {split}.jsonl."
        )


def require_columns(rows: Dataset, required: Iterable[str], what: str, remedy: str) -> None:
    """Raise ValueError where rows lack a column; `a.b` is field b of the struct column a."""
    existing = column_names(rows)
    missing = [column for column in required if column not in existing]
    if missing:
        noun = "columns" if len(missing) > 1 else "column"
        names = ", ".join(map(repr, missing))
        guess = did_you_mean(missing[0], existing)
        raise ValueError(f"{what} needs the {noun} {names}, but the rows have {', '.join(existing)}.{guess} {remedy}")


def check_trl_can_read(rows: Dataset, name: str | None, text_column: str) -> None:
    """Raise ValueError for rows in none of TRL's formats, which would fail there with a KeyError."""
    formats = [{"messages"}, {"conversations"}, {"prompt", "completion"}, {"input_ids"}, {text_column}]
    existing = set(rows.column_names)
    if not any(columns <= existing for columns in formats):
        raise ValueError(
            f"training cannot read {name!r} with the columns {', '.join(rows.column_names)}. It reads messages; prompt "
            f"and completion; {text_column} (--dataset_text_field); input_ids and labels; two columns of your own "
            f"(--question_column, --response_column); and a local copy of {', '.join(SOURCES)} with --data_dir FILE."
        )


def column_names(rows: Dataset) -> list[str]:
    """Return the column names, with the fields of struct columns as column.field."""
    names: list[str] = []
    for name, feature in rows.features.items():
        names.append(name)
        if isinstance(feature, dict):
            names += [f"{name}.{key}" for key in feature]
    return names
