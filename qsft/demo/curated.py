"""The demo's demonstrations for the data-level methods: each with its answer, and who verifies a response."""

from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from qsft.demo.reading import given_answer
from qsft.demo.vocabulary import EOS, WORDS
from qsft.demo.world import PROMPT_LENGTH, Problem


def with_answers(rows: Dataset) -> Dataset:
    """The rows with the true answer of each problem as a column."""
    return rows.add_column("answer", [problem_of(ids).answer for ids in rows["input_ids"]])


def problem_of(ids: list[int]) -> Problem:
    """The problem that a document begins with."""
    _, start, *operations, _ = (WORDS[i] for i in ids[:PROMPT_LENGTH])
    return Problem(int(start), tuple(operations))


def verify(response: str, row: Mapping[str, Any]) -> bool:
    """Whether a response that came to its end gives the true answer."""
    return given_answer([*response.split(), EOS]) == row["answer"]
