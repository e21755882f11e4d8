"""A data set's documents are the documents of the batches made of it, for every way TRL arranges data."""

import numpy as np
import pytest
import torch
from datasets import Dataset

from qsft.teacher.documents import Documents, document_index, document_key, spans, split

SETTINGS = [
    ("completion", {}),
    ("text", {"pad_to_multiple_of": 8}),
    ("text", {"padding_free": True, "max_length": None, "pad_to_multiple_of": 8}),
    ("completion", {"packing": True, "max_length": 32}),
    ("text", {"packing": True, "packing_strategy": "bfd_split", "max_length": 8}),
    ("text", {"packing": True, "packing_strategy": "wrapped", "max_length": 16}),
]


def keys_of(documents):
    return sorted(document_key(d["input_ids"], d["labels"]) for d in documents if (d["labels"][1:] != -100).any())


def batched_documents(collator, rows, size=5):
    for start in range(0, len(rows), size):
        features = rows[start : start + size]
        batch = collator(features)
        for row, begin, end in spans(batch, features):
            yield {name: batch[name][row, begin:end].numpy() for name in ("input_ids", "labels")}


@pytest.mark.parametrize(("form", "settings"), SETTINGS)
def test_data_sets_and_batches_have_the_same_documents(trainer, data, form, settings):
    made = trainer(getattr(data, form)(), **settings)
    documents = Documents(made.train_dataset)
    batches = list(batched_documents(made.data_collator, list(made.train_dataset)))
    assert keys_of(documents) == keys_of(batches)
    assert keys_of(Documents(made.train_dataset, collator=made.data_collator)) == keys_of(documents)


def test_documents_are_a_sequence_over_all_data_sets():
    packed = Dataset.from_list([{"input_ids": [1, 2, 3, 4], "labels": [1, 2, -100, 4], "seq_lengths": [3, 1]}])
    plain = Dataset.from_list([{"input_ids": [5, 6], "labels": [-100, 6]}])
    documents = Documents(packed, plain)
    assert len(documents) == 3
    assert [d["input_ids"].tolist() for d in documents] == [[1, 2, 3], [4], [5, 6]]
    assert documents[2]["labels"].tolist() == [-100, 6]
    assert all(
        np.array_equal(a["input_ids"], b["input_ids"]) for a, b in zip(documents, map(documents.__getitem__, range(3)))
    )


def test_without_labels_every_token_is_one():
    assert split({"input_ids": [7, 8]})[0]["labels"].tolist() == [7, 8]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(side):
    rows = [[1, 2, 3], [4, 5]]
    pad = [0] * 1
    ids = torch.tensor([rows[0], pad + rows[1] if side == "left" else rows[1] + pad])
    batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    features = [{"input_ids": row} for row in rows]
    assert [tuple(span) for span in spans(batch, features)] == [(0, 0, 3), (1, 1, 3) if side == "left" else (1, 0, 2)]
    index = document_index(batch, spans(batch, features))
    assert (index == -1).equal(ids == 0)


def test_a_batch_with_neither_mask_nor_positions_is_padded_on_the_right():
    batch = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]])}
    assert spans(batch, [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]) == [(0, 0, 3), (1, 0, 2)]
