"""Once the labels are known the head needs no host-device synchronization: no value is read, none is copied."""

from contextlib import nullcontext

import pytest
import torch
from cases import CASES, FromNumbers, make_batch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from qsft import TARGETS, SideInputs, TopK, fused_target_loss, make_target
from qsft.losses import projection
from qsft.losses.label_tokens import LabelTokens

H = 11


def head_inputs(batch, dtype=torch.float32):
    hidden, weight = (torch.randn(n, H, dtype=dtype) for n in batch.logits.shape)
    return hidden.requires_grad_(), weight.requires_grad_()


def test_nothing_synchronizes_once_the_labels_are_known():
    """A fake tensor has no values: whatever needs one raises, as it would make a GPU's queue run dry."""
    with FakeTensorMode():
        batch = Unread(n=5, v=23, k=5)
        for name in TARGETS:
            hidden, weight = head_inputs(batch)
            fused_target_loss(
                hidden, weight, batch.tokens, make_target(name), batch.teacher, side=batch.side
            ).loss.backward()
            assert hidden.grad.shape == (5, H)


@pytest.fixture(params=["torch", "triton"])
def head_kernel(request, monkeypatch):
    """Both paths. The kernels need values: in their place are statistics that nobody has computed."""
    if request.param == "triton":
        pytest.importorskip("triton")
        from qsft.losses import kernels

        def statistics(tile, bias, projection):
            top, lse, mean = tile.new_zeros(3, len(tile))
            return kernels.RowStatistics(top, lse, mean, torch.zeros_like(lse, dtype=torch.long))

        monkeypatch.setattr(kernels, "row_statistics", statistics)
        monkeypatch.setattr(kernels, "write_gradient", lambda *_: None)
    return request.param


class Products(TorchDispatchMode):
    """Notes the overloads of matrix products."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))


class LargeTensors(TorchDispatchMode):
    """Notes dtype and size of every new tensor with at least so many numbers."""

    def __init__(self, at_least):
        super().__init__()
        self.at_least = at_least
        self.known = {}  # by address; a storage that is kept cannot leave its address to another one
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in self.known:
                continue
            self.known[storage._cdata] = storage
            if tensor.numel() >= self.at_least:
                self.found.append((tensor.dtype, tensor.numel()))
        return out


# Each row with each word among its hyper-parameters that chooses other code; numbers choose none.
WORDS = (
    [(name, {}) for name in TARGETS]
    + [(n, {"tail": "ghost"}) for n in ("kd", "target_sft")]
    + [("iw_sft", {"ratio": "raw"})]
)


def test_on_a_device_that_has_them_all_products_are_written_in_float32(head_kernel, monkeypatch):
    """The device "meta" stands for a GPU: it computes nothing, raises when asked for a value, and has such products."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which does not know the device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    logits, weights = "aten.mm.dtype_out", "aten.addmm.dtype_out"
    with torch.device("meta"):
        batch = Unread(n=5, v=23, k=5)
        for (name, hparams), dtype in [*((row, torch.bfloat16) for row in WORDS), (WORDS[0], torch.float16)]:
            hidden, weight = head_inputs(batch, dtype)
            assert projection.has_wide_products(hidden.device, dtype, torch.float32)
            target = make_target(name, **hparams)
            with Products() as mode:
                fused_target_loss(
                    hidden, weight, batch.tokens, target, batch.teacher,
                    side=batch.side, chunk=3, head_kernel=head_kernel,
                ).loss.backward()  # fmt: skip
            scores = [logits] * (2 if target.per_document else 0)  # whole documents are weighed first
            assert mode.found == scores + [logits, logits, weights] * 2, (name, hparams)
            assert weight.grad.dtype == dtype


def test_a_single_chunk_writes_the_weights_gradient_in_bf16_and_nothing_is_copied(head_kernel, monkeypatch):
    """No second tile and no second gradient: per step one tile of logits, and gradients as large as eager's."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which does not know the device
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    n, v = 64, 5000
    with torch.device("meta"):
        batch = Unread(n=n, v=v, k=5)
        hidden, weight = head_inputs(batch, torch.bfloat16)
        projection.has_wide_products(hidden.device, torch.bfloat16, torch.float32)  # its own product, once per process
        with Products() as products, LargeTensors(at_least=n * v) as made:
            fused_target_loss(
                hidden, weight, batch.tokens, make_target("target_sft"), batch.teacher, head_kernel=head_kernel
            ).loss.backward()
    assert products.found == ["aten.mm.dtype_out", "aten.mm.dtype_out", "aten.addmm.out"]
    tile = (torch.float32, n * v)
    block = [tile] if head_kernel == "torch" else []  # here one block is as large as the tile
    assert made.found == [tile, *block]


def test_a_device_without_such_products_is_found_out(monkeypatch):
    """An older torch, or an accelerator that has no kernel for them."""

    def missing(*_, **__):
        raise NotImplementedError("mm.dtype_out")

    ask = projection.has_wide_products.__wrapped__
    assert ask(torch.device("meta"), torch.bfloat16, torch.float32)
    monkeypatch.setattr(torch.ops.aten.mm, "dtype_out", missing)
    assert not ask(torch.device("meta"), torch.bfloat16, torch.float32)
    assert not ask(torch.device("cpu"), torch.bfloat16, torch.float32)  # which would round inside


class Unread:
    """The tensors of a batch, made without reading any of them."""

    def __init__(self, n, v, k):
        self.logits = torch.empty(n, v)
        self.labels = torch.zeros(n, dtype=torch.long)
        self.tokens = LabelTokens(torch.arange(n), self.labels, (0, v - 1), True)
        self.teacher = TopK(torch.zeros(n, k, dtype=torch.long), torch.zeros(n, k), torch.zeros(n), torch.zeros(n))
        scores = {name: torch.zeros(n) for name in ("ref_logp", "old_logp", "critical")}
        self.side = SideInputs(**scores, document=torch.zeros(n, dtype=torch.long))


def test_labels_are_found_with_one_synchronization_and_none_if_their_positions_are_known():
    labels = torch.tensor([[3, -100, 5], [-100, 7, -100]])
    found = LabelTokens.of(labels)
    assert found.index.tolist() == [0, 2, 4]
    assert found.labels.tolist() == [3, 5, 7]
    assert found.id_range == (0, 7)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(labels)
        with pytest.raises(DataDependentOutputException):
            LabelTokens.of(fake)
        positions = mode.from_tensor(torch.tensor([0, 2, 4]))
        assert LabelTokens.of(fake, positions).labels.shape == (3,)
    known = LabelTokens.of(labels, torch.tensor([0, 2, 4]))
    assert known.labels.tolist() == [3, 5, 7]
    for wrong in ([0, 2], [0, 1, 2, 4], [0, 1, 2]):
        with pytest.raises(RuntimeError, match="Remove label_positions from the batch"):
            LabelTokens.of(labels, torch.tensor(wrong))
    many = torch.where(torch.rand(64, 200) < 0.5, 1, -100)  # a sort that is not stable would mix them
    assert torch.equal(LabelTokens.of(many).index, (many.flatten() == 1).nonzero()[:, 0])
    assert LabelTokens.of(torch.empty(0, 4, dtype=torch.long)).labels.numel() == 0


def test_no_tensor_is_made_from_numbers(head_kernel):
    with FromNumbers() as mode:
        torch.zeros(1).new_tensor(3.0)
        torch.as_tensor(3.0)
    assert len(mode.found) == 2  # it would be noticed
    batch = make_batch(dtype=torch.float32)
    tokens = LabelTokens.of(batch.labels.clamp(min=0))
    for name, hparams in CASES:
        hidden, weight = head_inputs(batch)
        with FromNumbers() as mode:
            out = fused_target_loss(
                hidden, weight, tokens, make_target(name, **hparams), batch.teacher,
                side=batch.side, head_kernel=head_kernel,
            )  # fmt: skip
            out.loss.backward()
        assert mode.found == [], name
