"""A step of the trainer needs no host-device synchronization of ours: the collator has found the labels on the CPU."""

from types import SimpleNamespace

import pytest
import torch
from cases import FromNumbers
from peft import PromptTuningConfig, get_peft_model
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from qsft import make_target
from qsft.losses.sums import SUM_NAMES
from qsft.teacher.live import LiveTeacher
from qsft.train.metrics import MetricSums
from qsft.train.old_policy import score_labels
from qsft.train.validate import collator_sees_final_labels

# Each kind of input that a batch carries; that no target's head reads a value: tests/losses/test_synchronization.py.
READERS = ("sft", "target_sft", "iw_sft", "psft", "cft")


def test_no_step_synchronizes_with_the_device(trainer, data, tiny_model, tmp_path):
    """Fake tensors have no values: whatever reads one raises an error; on a GPU it would synchronize."""
    small = tiny_model(num_hidden_layers=1)
    made = trainer(
        data.tokens(), model=small, target="target_sft", teacher=tiny_model(seed=5), teacher_cache=str(tmp_path),
        check_head=False,
    )  # fmt: skip
    made.data_collator.attach_document = True
    batch = made.data_collator(list(made.train_dataset)[:4])
    batch["critical"] = torch.ones_like(batch["labels"], dtype=torch.int8)
    batch["old_logp"] = torch.zeros_like(batch["labels"], dtype=torch.int32)
    trained = list(made.model.parameters())
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = {name: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for name, v in batch.items()}
        in_step = mode.from_tensor(torch.tensor(17))
        for name in READERS:
            made.target = make_target(name)
            loss = made.compute_loss(made.model, fake, num_items_in_batch=in_step)
            torch.autograd.grad(loss, trained)
        assert score_labels(made.model, fake).shape == batch["labels"].shape
        made.target = make_target("target_sft")
        made.live_teacher = LiveTeacher(small, k=5)
        made.live_teacher._head_checked = True  # which compares values, once
        made.compute_loss(made.model, fake, num_items_in_batch=in_step)
        del fake["label_positions"]
        with pytest.raises(DataDependentOutputException):
            made.compute_loss(made.model, fake, num_items_in_batch=in_step)


def test_the_collator_counts_the_labels_that_the_head_sees(trainer, data):
    made = trainer(data.tokens())
    rows = list(made.train_dataset)[:5]
    batch = made.data_collator(rows)
    expected = sum(label != -100 for row in rows for label in row["labels"][1:])
    assert len(batch["label_positions"]) == expected == int(made.model(**batch, target=made.target).sums[0])


def test_label_positions_are_attached_only_where_the_head_sees_the_same_labels(tiny_model, data):
    """accelerate may collate for all processes and hand out slices; PEFT adds labels for its virtual tokens."""
    rows = data.tokens()
    stream = rows.to_iterable_dataset()
    model = tiny_model()

    def attached(dispatch, *datasets):
        return collator_sees_final_labels(model, SimpleNamespace(dispatch_batches=dispatch), datasets)

    assert [attached(dispatch, rows) for dispatch in (None, False, True)] == [True, True, False]
    assert [attached(dispatch, rows, stream) for dispatch in (None, False, True)] == [False, True, False]
    prompted = get_peft_model(model, PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    assert not collator_sees_final_labels(prompted, SimpleNamespace(dispatch_batches=None), [rows])


def test_metrics_make_no_tensor_from_a_number():
    sums = MetricSums()
    loss = torch.tensor(1.0)
    with FromNumbers() as mode:
        for seen in (5, torch.tensor(5)):
            sums.add(torch.zeros(len(SUM_NAMES)), seen, loss)
    assert mode.found == ["aten.lift_fresh.default"]  # the test's own tensor
    assert sums.take(lambda total: total)["tokens_read"] == 10
