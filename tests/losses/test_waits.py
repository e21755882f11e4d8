"""Once the labels are known nothing asks the device for a value, and no tensor is made from Python numbers."""

import pytest
import torch
from cases import ROWS, make_batch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from qsft import TARGETS, fused_target_loss, make_target
from qsft.losses.positions import LabelTokens

H = 11


def head_inputs(batch):
    hidden, weight = torch.randn(len(batch.labels), H), torch.randn(batch.logits.shape[-1], H)
    return hidden.requires_grad_(), weight.requires_grad_()


# Each row once for every word among its hyper-parameters: numbers choose no code, but for the ends of a range.
WORDS = {(n, *(v for v in h.values() if isinstance(v, str) or v in (0.0, 1.0))): (n, h) for n, h in ROWS}


def test_no_value_is_asked_for_once_the_labels_are_known():
    """A fake tensor has no values: whatever needs one raises, as it would make a GPU's queue run dry."""
    assert {name for name, _ in WORDS.values()} == set(TARGETS)
    with FakeTensorMode():
        batch = Unread(n=9, v=23, k=5)
        tokens = LabelTokens(torch.arange(9), batch.labels, (0, 22), True)
        for name, hparams in WORDS.values():
            hidden, weight = head_inputs(batch)
            out = fused_target_loss(
                hidden, weight, tokens, make_target(name, **hparams), batch.teacher, side=batch.side, chunk=4
            )
            out.loss.backward()
            assert hidden.grad.shape == (9, H)


class Unread:
    """The tensors of a batch, made without reading any of them."""

    def __init__(self, n, v, k):
        from qsft import SideInputs, TopK

        self.logits = torch.empty(n, v)
        self.labels = torch.zeros(n, dtype=torch.long)
        self.teacher = TopK(torch.zeros(n, k, dtype=torch.long), torch.zeros(n, k), torch.zeros(n), torch.zeros(n))
        scores = {name: torch.zeros(n) for name in ("ref_logp", "old_logp", "critical")}
        self.side = SideInputs(**scores, document=torch.zeros(n, dtype=torch.long))


def test_labels_are_found_with_one_question_and_none_if_they_were_counted():
    labels = torch.tensor([[3, -100, 5], [-100, 7, -100]])
    found = LabelTokens.of(labels)
    assert found.index.tolist() == [0, 2, 4]
    assert found.labels.tolist() == [3, 5, 7]
    assert found.span == (0, 7)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(labels)
        with pytest.raises(DataDependentOutputException):
            LabelTokens.of(fake)
        assert LabelTokens.of(fake, count=3).labels.shape == (3,)
    counted = LabelTokens.of(labels, count=3)
    assert counted.labels.tolist() == [3, 5, 7]
    for wrong in (2, 4):
        with pytest.raises(RuntimeError, match="Take label_count out of the batch"):
            LabelTokens.of(labels, count=wrong)
    many = torch.where(torch.rand(64, 200) < 0.5, 1, -100)  # a sort that is not stable would mix them
    assert torch.equal(LabelTokens.of(many).index, (many.flatten() == 1).nonzero()[:, 0])
    assert LabelTokens.of(torch.empty(0, 4, dtype=torch.long)).labels.numel() == 0


class FromNumbers(TorchDispatchMode):
    """Notes every tensor that is made from Python numbers: on a GPU each is a copy that waits."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.lift_fresh:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def test_no_tensor_is_made_from_numbers():
    with FromNumbers() as mode:
        torch.zeros(1).new_tensor(3.0)
        torch.as_tensor(3.0)
    assert len(mode.found) == 2  # it would be noticed
    batch = make_batch(dtype=torch.float32)
    tokens = LabelTokens.of(batch.labels.clamp(min=0))
    for name, hparams in ROWS:
        hidden, weight = head_inputs(batch)
        with FromNumbers() as mode:
            fused_target_loss(hidden, weight, tokens, make_target(name, **hparams), batch.teacher, side=batch.side)
        assert mode.found == [], name
