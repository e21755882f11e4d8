"""Token ids and labels that the student does not have raise errors that name them."""

import pytest
from datasets import Dataset


def rows(ids, labels, count=8):
    return Dataset.from_list([{"input_ids": ids, "labels": labels}] * count)


@pytest.mark.parametrize("target", ["sft", "dft"])
@pytest.mark.parametrize(
    ("ids", "labels", "named"),
    [
        ([30, 31, 99_999], [-100, 31, -100], "99999"),
        ([30, -7, 31], [-100, -100, 31], "-7"),
        ([30, 31, 32], [-100, 31, 99_999], "99999"),
        ([30, 31, 32], [-100, 31, -7], "-7"),
    ],
    ids=["large id", "negative id", "large label", "negative label"],
)
def test_token_ids_and_labels_outside_the_vocabulary_are_named(trainer, target, ids, labels, named):
    with pytest.raises(ValueError, match=named):
        trainer(rows(ids, labels), target=target).train()
