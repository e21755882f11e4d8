"""TeacherCache: a published cache, opened for lookups.

A cache is a directory of manifest.json, vocabulary.json and self-describing shards. A document is named by a digest of
its tokens and labels (documents.py), so a teacher row can never belong to other tokens, whatever the order, the batch
or the packing. Row t describes the distribution of token t given the tokens before t, for every label position t.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from qsft.targets.view import TopK
from qsft.teacher.documents import Documents, Tokens, document_key, label_positions
from qsft.teacher.format.complete import is_complete, remember
from qsft.teacher.format.encoding import TopKArrays
from qsft.teacher.format.manifest import read_manifest
from qsft.teacher.format.shards import Shard, published
from qsft.teacher.identity import Vocabulary, check_head_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from qsft.teacher.verify import Verification


class TeacherCache:
    """A published cache: documents in, the teacher's top-k at their label positions out.

    Opening reads the shards' indexes; payloads stay on disk, memory-mapped.
    A checksum is checked at every lookup. To a DataLoader's worker goes the path alone; no file is ever unpickled.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        self.manifest.check_sizes(self.path)
        self._codec, identity = self.manifest.identity.codec(self.manifest.version), asdict(self.manifest.identity)
        self.shards = [Shard(path) for path in published(self.path)]
        for shard in self.shards:
            shard.refuse_foreign(self.manifest.version, identity)
            shard.check_sizes(self._codec)
        keys = _comparable(np.concatenate([np.zeros((0, 16), np.uint8), *(shard.keys for shard in self.shards)]))
        counts = np.array([len(shard) for shard in self.shards], np.int64)
        order = np.argsort(keys, kind="stable")  # of two copies of a document the first one is read
        self._keys, self._shard_of = keys[order], np.repeat(np.arange(len(counts)), counts)[order]
        self._place_of = order - (np.cumsum(counts) - counts)[self._shard_of]

    def __reduce__(self) -> tuple[type["TeacherCache"], tuple[Path]]:
        return TeacherCache, (self.path,)

    def __repr__(self) -> str:
        identity = self.manifest.identity
        name, form = identity.teacher.get("name"), f"k={identity.top_k}, encoding={identity.cache_encoding!r}"
        return f"TeacherCache({str(self.path)!r}, teacher={name!r}, {form}, documents={len(self)})"

    def __len__(self) -> int:
        """Documents in the cache; a document two captures wrote counts once."""
        return int((self._keys[1:] != self._keys[:-1]).sum()) + 1 if len(self._keys) else 0

    def __contains__(self, document: bytes | Mapping[str, Tokens]) -> bool:
        if isinstance(document, bytes):
            return self._place(document) >= 0
        return self.has(document["input_ids"], document["labels"])

    @property
    def k(self) -> int:
        """Slots per row."""
        return self.manifest.identity.top_k

    @property
    def vocab_size(self) -> int:
        """TopKArrays of the teacher's head."""
        return self.manifest.identity.vocab_size

    @property
    def has_tail(self) -> bool:
        """Whether rows carry the log of the mass outside their slots: from format version 2 on."""
        return self.manifest.version > 1

    def has(self, input_ids: Tokens, labels: Tokens) -> bool:
        """Whether a lookup would succeed; a document without a label has nothing to look up."""
        return not len(label_positions(labels)) or document_key(input_ids, labels) in self

    def lookup(self, input_ids: Tokens, labels: Tokens) -> TopK:
        """The teacher at the document's label positions, in order: ids int32 [n,k], log-probs and label_logp fp16."""
        n = len(label_positions(labels))
        if not n:
            return _tensors(self._codec.decode(np.zeros(0, np.uint8), 0))
        rows = self.lookup_arrays(document_key(input_ids, labels))
        if len(rows.ids) != n:
            raise ValueError(f"the cache {self.path} holds {len(rows.ids)} rows for a document with {n} labels.")
        return _tensors(rows)

    def lookup_arrays(self, key: bytes) -> TopKArrays:
        """The rows of the document named `key`, as numpy arrays."""
        place = self._place(key)
        if place < 0:
            raise ValueError(
                f"document {key.hex()} is not in the teacher cache {self.path} ({len(self)} documents). The "
                "data differ from what was captured; `qsft cache build` with the same recipe adds what is missing."
            )
        return self.shards[self._shard_of[place]].read(int(self._place_of[place]), self._codec)

    def absent(self, keys: np.ndarray) -> np.ndarray:
        """Which of the documents named `keys` (uint8 [n,16]) the cache lacks, as a mask."""
        return self._places(keys) < 0

    @property
    def shard_names(self) -> list[str]:
        """The shards' files; each is named by its digest."""
        return [shard.path.name for shard in self.shards]

    def is_complete(self, documents: Documents) -> bool:
        """Whether all documents are known to be here from an earlier start; False when it has to be looked up."""
        return is_complete(self.path, documents, self.shard_names)

    def missing(self, documents: Iterable[Mapping[str, Tokens]], *, check: bool = True) -> list[int]:
        """Indices of the documents the cache lacks; with `check`, DamagedShard if one it has is not as written.

        Without `check`, a data set that was complete at an earlier start is not read again.
        """
        documents = documents if isinstance(documents, Documents) else Documents(documents)
        if not check and self.is_complete(documents):
            return []
        found = documents.overview
        labelled = found.labels > 0
        places = self._places(found.keys)
        if check:
            for place in np.unique(places[(places >= 0) & labelled]):
                self.shards[self._shard_of[place]].checked(int(self._place_of[place]))
        absent = np.flatnonzero((places < 0) & labelled).tolist()
        if not absent:
            remember(self.path, documents, self.shard_names)
        return absent

    def check_student(self, tokenizer: "PreTrainedTokenizerBase | None" = None, vocab_size: int | None = None) -> None:
        """ValueError unless a student speaks the cache's tokens; heads may differ in padding rows.

        `vocab_size` is the number of rows of the student's head. Ids without a row in one of the heads say nothing.
        """
        identity = self.manifest.identity
        words = min(identity.tokenizer["tokens"], self.vocab_size)
        if tokenizer is not None:
            vocabulary = Vocabulary.of(tokenizer)
            identity.check_same_tokenizer(self.path, vocabulary, "the student's tokenizer")
            words = min(words, vocabulary.words)
        if vocab_size is not None:
            check_head_size(vocab_size, words, f"the student for the teacher cache {self.path}")

    def verify(self) -> "Verification":
        """What is wrong with the cache, file by file: every checksum and bound is checked."""
        from qsft.teacher.verify import verify_cache

        return verify_cache(self.path)

    def samples(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The few (input_ids, labels) that the shards keep whole, to check against a teacher."""
        return [document for shard in self.shards for document in shard.sample()]

    def _place(self, key: bytes) -> int:
        return int(self._places(np.frombuffer(key, np.uint8)[None])[0])

    def _places(self, keys: np.ndarray) -> np.ndarray:
        """Where each of `keys` stands in the sorted index, −1 where it does not."""
        wanted = _comparable(keys)
        places = np.searchsorted(self._keys, wanted)
        inside = np.minimum(places, len(self._keys) - 1)
        found = self._keys[inside] == wanted if len(self._keys) else np.zeros(len(wanted), bool)
        return np.where(found, places, -1)


def _tensors(rows: TopKArrays) -> TopK:
    columns = [None if array is None else torch.from_numpy(np.ascontiguousarray(array)) for array in rows]
    return TopK(*columns)  # type: ignore[arg-type]


def _comparable(keys: np.ndarray) -> np.ndarray:
    """16-byte keys as one sortable array; equal lengths make numpy's padding rule harmless."""
    return np.ascontiguousarray(keys).view("S16")[:, 0]
