"""What a capture needs of a teacher, whatever kind of teacher it is."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qsft.teacher.format.encoding import TopKArrays
from qsft.teacher.vocabulary import Vocabulary


@dataclass(frozen=True)
class Replica:
    """Which copy of the teacher this process runs, of how many in the same capture."""

    index: int
    count: int


class TeacherSource(ABC):
    """A teacher that can be identified before it is loaded, and computes log-probs once it is."""

    name: str

    @property
    @abstractmethod
    def replica(self) -> Replica:
        """Which replica this process is; the documents of a capture are divided over the replicas."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Everything that decides the teacher's numbers, as JSON.

        name       as given by the user
        revision   the Hub's commit, or None
        files      name, size and digest of the weight files, empty where they are not known
        weights    digest of all weights, None until the teacher is loaded
        config     digest of the configuration of the loaded teacher; `config_file` that of its config.json
        loading    arguments of loading that change numbers (quantization, attention, …); None where not known
        base       the same description of the base model where the teacher is an adapter, else None
        """

    @abstractmethod
    def location_key(self) -> Any:
        """What distinguishes this teacher's default cache from others', wherever its files lie; JSON."""

    @property
    @abstractmethod
    def requested_dtype(self) -> str | None:
        """The dtype the user requested, None for the teacher's own."""

    @abstractmethod
    def shared_ids(self, vocabulary: Vocabulary) -> int:
        """How many ids the teacher's tokenizer shares with that of the data; ValueError when they do not match."""

    @abstractmethod
    def load(self) -> Any:
        """Make the teacher ready to compute; calling it again does nothing."""

    @property
    @abstractmethod
    def dtype(self) -> str:
        """What the loaded teacher computes in."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Vocabulary entries of the loaded teacher's head."""

    @abstractmethod
    def log_probs(self, documents: Sequence[np.ndarray], top_k: int) -> TopKArrays:
        """The log-probs at the label positions of documents [2, T] (ids and labels), document after document.

        Each document is computed alone: its positions count from its first token.
        """

    def advice(self) -> str | None:
        """What would make a teacher faster that is never kept waiting; None where nothing is known."""
        return None
