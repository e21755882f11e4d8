"""Data sets that are documents already: input_ids and labels on disk."""

from pathlib import Path

from datasets import Dataset, load_dataset, load_from_disk


def load_documents(path: str) -> Dataset:
    """The data set at `path`, which must have input_ids and labels."""
    if Path(path).is_dir():
        dataset = load_from_disk(path)
    elif Path(path).suffix in (".parquet", ".jsonl", ".json"):
        kind = "parquet" if path.endswith(".parquet") else "json"
        dataset = load_dataset(kind, data_files=path, split="train")
    else:
        raise ValueError(f"{path} is not a data set: give a save_to_disk directory, a .parquet or a .jsonl file.")
    if not isinstance(dataset, Dataset):
        raise ValueError(f"{path} holds the splits {', '.join(dataset)}. Give the directory of one: {path}/train.")
    absent = {"input_ids", "labels"} - set(dataset.column_names)
    if absent:
        raise ValueError(
            f"{path} has no column {' and '.join(sorted(absent))}, only {', '.join(dataset.column_names)}. A cache is "
            "built from tokenised documents; for a chat data set use a recipe, which tokenises as training does."
        )
    return dataset
