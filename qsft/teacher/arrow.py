"""The token columns of a `datasets.Dataset`, read from Arrow's buffers where they lie."""

import os
from typing import Any

import numpy as np


def token_table(dataset: Any) -> Any:
    """The token columns of a `datasets.Dataset` as an Arrow table; None where rows are not what the table holds."""
    from datasets import Dataset
    from pyarrow import types

    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom":
        return None
    names = [name for name in ("input_ids", "labels", "seq_lengths") if name in dataset.column_names]
    table = dataset.data.table.select(names)
    for column in table.columns:
        is_list = types.is_list(column.type) or types.is_large_list(column.type)
        if not is_list or not types.is_integer(column.type.value_type) or column.null_count:
            return None
        if any(chunk.values.null_count for chunk in column.chunks):
            return None
    return table


def stamp_of(dataset: Any) -> list[Any] | None:
    """Fingerprint, rows and files of a memory-mapped `datasets.Dataset`."""
    from datasets.table import ConcatenationTable, MemoryMappedTable

    if token_table(dataset) is None:
        return None
    blocks = [dataset.data]
    if isinstance(dataset.data, ConcatenationTable):
        blocks = [block for row in dataset.data.blocks for block in row]
    if not all(isinstance(block, MemoryMappedTable) for block in blocks):
        return None
    files = [(file["filename"], os.stat(file["filename"])) for file in dataset.cache_files]
    return [dataset._fingerprint, len(dataset), [[name, stat.st_size, stat.st_mtime_ns] for name, stat in files]]


def flat(column: Any) -> tuple[np.ndarray, np.ndarray]:
    """The values of a list column, not copied, and where each row starts and the last one ends."""
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy().astype(np.int64)


def selected(count: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The documents of `rows`, in that order, when row r holds `count[r]` documents."""
    first, chosen = np.cumsum(count) - count, count[rows]
    within = np.arange(chosen.sum()) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    places: np.ndarray = np.repeat(first[rows], chosen) + within
    return places
