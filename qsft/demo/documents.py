"""The demo's documents as data sets: tokenized, with labels and critical tokens."""

from collections.abc import Sequence

from datasets import Dataset

from qsft.demo.scenario import Scenario
from qsft.demo.task import EQUALS, PROMPT_LENGTH, chains, encode
from qsft.targets.view import IGNORED


def demonstrations(scenario: Scenario) -> Dataset:
    """Return what the students are fine-tuned on: noisy solutions of problems outside the evaluation."""
    held_out = frozenset(scenario.evaluation)
    count = scenario.fine_tuning.documents
    return as_dataset(chains(scenario.demonstrator, count, scenario.seed, without=held_out))


def as_dataset(documents: Sequence[list[str]], prompt_length: int = PROMPT_LENGTH) -> Dataset:
    """Return documents with the columns input_ids, labels and critical.

    `critical` is for the target `cft`: it is 1 at the results, where a solution is right or wrong.

    Args:
        prompt_length: how many tokens at the beginning of each document are not labels.
    """
    input_ids = [encode(document) for document in documents]
    labels = [[IGNORED] * prompt_length + ids[prompt_length:] for ids in input_ids]
    critical = [_mark_results(document) for document in documents]
    return Dataset.from_dict({"input_ids": input_ids, "labels": labels, "critical": critical})


def _mark_results(document: Sequence[str]) -> list[int]:
    previous_words = ["", *document[:-1]]
    return [1 if previous in EQUALS else 0 for previous in previous_words]
