"""TeacherCache: a published cache, opened for lookups.

A cache is a directory of manifest.json, vocabulary.json and self-describing shards. A document is named by a digest of
its tokens and labels (documents.py), so log-probs can never belong to other tokens, whatever the order, the batch or
the packing. Entry t describes the distribution of token t given the tokens before t, for every label position t.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from qsft.targets.view import TopK
from qsft.teacher.documents import Documents, Tokens, document_key, label_positions
from qsft.teacher.format.complete import is_complete, note_complete
from qsft.teacher.format.encoding import TopKArrays
from qsft.teacher.format.manifest import read_manifest
from qsft.teacher.format.shards import VERSION, Shard, published_shards
from qsft.teacher.vocabulary import Vocabulary, check_head_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from qsft.teacher.verify import Verification


class TeacherCache:
    """An existing cache, which returns the teacher's top-k log-probs at the label positions of a document.

    Opening a cache reads the indexes of the shards. Payloads stay on disk until they are looked up, and every lookup
    checks a checksum. Workers of a DataLoader receive the cache as its path. No file is ever unpickled.

    Raises:
        ValueError: if the directory is not a cache, or a file is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.manifest.check_sizes(self.path)
        self._codec = self.manifest.identity.codec()
        identity = asdict(self.manifest.identity)
        self.shards = [Shard(shard_path) for shard_path in published_shards(self.path)]
        for shard in self.shards:
            shard.check_belongs_to(VERSION, identity)
            shard.check_sizes(self._codec)
        self._index_documents()

    def _index_documents(self) -> None:
        """Sort the keys of all shards; of two copies of a document the first one is read."""
        no_keys = np.zeros((0, 16), np.uint8)
        keys = _comparable(np.concatenate([no_keys, *(shard.keys for shard in self.shards)]))
        counts = np.array([len(shard) for shard in self.shards], np.int64)
        first_of_shard = np.cumsum(counts) - counts
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._shard_of = np.repeat(np.arange(len(counts)), counts)[order]
        self._document_in_shard = order - first_of_shard[self._shard_of]

    def __reduce__(self) -> tuple[type["TeacherCache"], tuple[Path]]:
        return TeacherCache, (self.path,)

    def __repr__(self) -> str:
        identity = self.manifest.identity
        return (
            f"TeacherCache({str(self.path)!r}, teacher={identity.teacher.get('name')!r}, k={identity.top_k}, "
            f"encoding={identity.cache_encoding!r}, documents={len(self)})"
        )

    def __len__(self) -> int:
        """Documents in the cache; a document that two captures wrote counts once."""
        if not len(self._keys):
            return 0
        return int((self._keys[1:] != self._keys[:-1]).sum()) + 1

    def __contains__(self, document: bytes | Mapping[str, Tokens]) -> bool:
        """Whether a lookup would succeed, of a key or of a document; one without a label has nothing to look up."""
        if isinstance(document, bytes):
            return self._find_one(document) >= 0
        has_label = len(label_positions(document["labels"])) > 0
        return not has_label or document_key(document["input_ids"], document["labels"]) in self

    @property
    def k(self) -> int:
        """The number of slots per label position."""
        return self.manifest.identity.top_k

    @property
    def vocab_size(self) -> int:
        """The number of vocabulary entries of the teacher's head."""
        return self.manifest.identity.vocab_size

    @property
    def logps_dtype(self) -> torch.dtype:
        """The type of looked-up log-probs: float16 of an `exact` cache, float32 of a `compact` one."""
        return torch.float16 if self._codec.logps_dtype is np.float16 else torch.float32

    @property
    def shard_names(self) -> list[str]:
        """The file names of the shards; each is the digest of its content."""
        return [shard.path.name for shard in self.shards]

    def lookup(self, input_ids: Tokens, labels: Tokens) -> TopK:
        """Return the teacher's log-probs at the document's label positions, in order.

        ids are int32 [n, k], label_logp and log_tail float16 [n], logps `logps_dtype` [n, k].

        Raises:
            ValueError: if the cache does not hold the document.
            DamagedShard: if its bytes are not as they were written.
        """
        expected = len(label_positions(labels))
        if not expected:
            return _tensors(self._codec.decode(np.zeros(0, np.uint8), 0))
        found = self.lookup_arrays(document_key(input_ids, labels))
        if len(found.ids) != expected:
            raise ValueError(
                f"the cache {self.path} holds {len(found.ids)} label positions for a document with {expected} labels."
            )
        return _tensors(found)

    def lookup_arrays(self, key: bytes) -> TopKArrays:
        """The log-probs of the document with this `key`, as numpy arrays."""
        place = self._find_one(key)
        if place < 0:
            raise ValueError(
                f"document {key.hex()} is not in the teacher cache {self.path} ({len(self)} documents). The "
                "data differ from what was captured; `qsft cache build` with the same recipe adds what is missing."
            )
        shard = self.shards[self._shard_of[place]]
        return shard.read(int(self._document_in_shard[place]), self._codec)

    def missing_mask(self, keys: np.ndarray) -> np.ndarray:
        """A mask of the documents with these `keys` (uint8 [n, 16]) that are not in the cache."""
        return self._find(keys) < 0

    def is_complete(self, documents: Documents) -> bool:
        """Whether an earlier start found all documents in this cache. If False, they have to be looked up."""
        return is_complete(self.path, documents, self.shard_names)

    def missing(self, documents: Iterable[Mapping[str, Tokens]], *, check: bool = True) -> list[int]:
        """Return the indices of the documents that are not in the cache.

        Args:
            check: also read the bytes of the documents it holds, and raise DamagedShard if they are not as written.
                Without it, a data set that was complete at an earlier start is not read again.
        """
        if not isinstance(documents, Documents):
            documents = Documents(documents)
        if not check and self.is_complete(documents):
            return []
        has_labels = documents.overview.label_counts > 0
        places = self._find(documents.overview.keys)
        if check:
            for place in np.unique(places[(places >= 0) & has_labels]):
                self.shards[self._shard_of[place]].read_payload(int(self._document_in_shard[place]))
        missing = np.flatnonzero((places < 0) & has_labels).tolist()
        if not missing:
            note_complete(self.path, documents, self.shard_names)
        return missing

    def check_student(self, tokenizer: "PreTrainedTokenizerBase | None" = None, vocab_size: int | None = None) -> None:
        """Raise ValueError unless a student can use the cache: the tokenizers match, and its head is large enough.

        Args:
            vocab_size: vocabulary entries of the student's head. Heads may differ in padding entries.
        """
        identity = self.manifest.identity
        tokens = min(identity.tokenizer["tokens"], self.vocab_size)
        if tokenizer is not None:
            vocabulary = Vocabulary.of(tokenizer)
            identity.check_same_tokenizer(self.path, vocabulary, "the student's tokenizer")
            tokens = min(tokens, vocabulary.base_tokens)
        if vocab_size is not None:
            check_head_size(vocab_size, tokens, f"the student for the teacher cache {self.path}")

    def verify(self) -> "Verification":
        """Check every checksum and bound, file by file."""
        from qsft.teacher.verify import verify_cache

        return verify_cache(self.path)

    def samples(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The sample documents (input_ids, labels) that the shards store complete, to compare with a teacher."""
        return [document for shard in self.shards for document in shard.sample()]

    def _find_one(self, key: bytes) -> int:
        return int(self._find(np.frombuffer(key, np.uint8)[None])[0])

    def _find(self, keys: np.ndarray) -> np.ndarray:
        """Where each of `keys` stands in the sorted index, −1 where it does not."""
        searched = _comparable(keys)
        if not len(self._keys):
            return np.full(len(searched), -1)
        places = np.searchsorted(self._keys, searched)
        candidates = self._keys[np.minimum(places, len(self._keys) - 1)]
        return np.where(candidates == searched, places, -1)


def _tensors(log_probs: TopKArrays) -> TopK:
    return TopK(*(torch.from_numpy(np.ascontiguousarray(array)) for array in log_probs))


def _comparable(keys: np.ndarray) -> np.ndarray:
    """16-byte keys as one sortable array; equal lengths make numpy's padding rule harmless."""
    return np.ascontiguousarray(keys).view("S16")[:, 0]
