"""Documents of the world as data sets of input_ids and labels, the form every trainer and cache of qsft reads."""

from collections.abc import Sequence

from datasets import Dataset

from qsft.demo.settings import Settings
from qsft.demo.vocabulary import EQUALS, encode
from qsft.demo.world import PROMPT_LENGTH, chains, evaluation_problems, pretraining_corpus
from qsft.targets.view import IGNORED


def pretraining_data(settings: Settings) -> Dataset:
    """What the base reads; every token is a label."""
    return as_dataset(pretraining_corpus(settings.pretraining.documents, settings.seed), prompt=0)


def teaching_data(settings: Settings) -> Dataset:
    """What the teacher is tuned on: solutions to problems it is given."""
    return as_dataset(chains(settings.teacher, settings.teaching.documents, settings.seed))


def demonstrations(settings: Settings) -> Dataset:
    """What the students are tuned on: noisy solutions to problems that nobody is measured on."""
    held_out = frozenset(evaluation_problems(settings.problems, settings.seed))
    written = chains(settings.demonstrator, settings.fine_tuning.documents, settings.seed, without=held_out)
    return as_dataset(written)


def as_dataset(documents: Sequence[list[str]], prompt: int = PROMPT_LENGTH) -> Dataset:
    """input_ids, labels, and for `cft` which tokens are critical: the results, where a chain is right or wrong."""
    ids = [encode(document) for document in documents]
    labels = [[IGNORED] * prompt + document[prompt:] for document in ids]
    critical = [[int(before in EQUALS) for before in ["", *document[:-1]]] for document in documents]
    return Dataset.from_dict({"input_ids": ids, "labels": labels, "critical": critical})
