"""The words that point a recipe at the tiny models and data."""

from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class TinyRun:
    """Where the tiny models and data are, and the overrides that make any recipe a run of seconds on a CPU."""

    folder: Path
    data: Path
    words: list[str]


@pytest.fixture
def local_words(tiny_files):
    """Factory: the overrides that make a recipe on a data set a run of seconds on a CPU; `more` are keys beside."""

    def of(dataset="numina", **more):
        words = {
            "model_name_or_path": tiny_files / "student",
            "teacher_model_name_or_path": tiny_files / "teacher",
            "data_dir": tiny_files / f"{dataset}.jsonl",
            "max_length": 64,
            "global_batch_size": 16,
            "use_cpu": "true",
            "bf16": "false",
            "dtype": "float32",
            **({"sample_rows": 64} if dataset == "openr1" else {}),
            **more,
        }
        return [word for key, value in words.items() for word in (f"--{key}", str(value))]

    return of


@pytest.fixture
def tiny_run(tiny_files, tmp_path, local_words):
    """Factory: `tiny_run("numina")` holds the overrides for a recipe on that data set, cache and output included."""

    def of(dataset):
        words = local_words(dataset, teacher_cache=tmp_path / "cache", output_dir=tmp_path / "run")
        return TinyRun(tmp_path, tiny_files / f"{dataset}.jsonl", words)

    return of
