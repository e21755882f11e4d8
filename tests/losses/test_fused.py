"""The fused head equals the reference for every target, in loss and in every gradient, whatever the chunk."""

import jaxtyping
import pytest
import torch
from cases import CASES, IDS, make_batch
from torch.utils._python_dispatch import TorchDispatchMode

from qsft import LossTarget, SideInputs, TopK, fused_target_loss, make_target, target_loss
from qsft.losses import projection
from qsft.losses.label_tokens import fused_label_logps
from qsft.losses.projection import GPU_TILE_BYTES, tokens_per_chunk
from qsft.losses.sums import SUM_NAMES
from qsft.targets.view import Full

H = 11


def head_inputs(batch, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    n, v = batch.logits.shape
    hidden = torch.randn(n, H, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(v, H, generator=g, dtype=torch.float64).mul(0.6).to(dtype).requires_grad_()
    bias = torch.randn(v, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, bias


def blocks_of(monkeypatch, rows, weight):
    """Let the fused head work on so many rows of a tile at a time."""
    monkeypatch.setattr(projection, "CPU_BLOCK_BYTES", rows * len(weight) * weight.dtype.itemsize)


def eager(hidden, weight, bias, batch, target, softcap=None, logit_scale=1.0, teacher=None):
    logits = hidden @ weight.t()
    logits = (logits if bias is None else logits + bias) * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return target_loss(logits, batch.labels, target, teacher or batch.teacher, side=batch.side)


@pytest.mark.parametrize(("name", "hparams"), CASES, ids=IDS)
def test_equals_the_reference_in_float64(name, hparams, monkeypatch):
    batch = make_batch()
    inputs = head_inputs(batch)
    target = make_target(name, **hparams)
    expected = eager(*inputs, batch, target)
    expected_grads = torch.autograd.grad(expected, inputs)
    hidden, weight, bias = inputs
    for chunk, block in ((1, 1), (3, 100), (100, 100), (5, 2), (100, 4)):
        blocks_of(monkeypatch, block, weight)
        out = fused_target_loss(
            hidden, weight, batch.labels, target, batch.teacher, side=batch.side, bias=bias, chunk=chunk
        )
        torch.testing.assert_close(out.loss, expected, rtol=0, atol=1e-10)
        for got, want in zip(torch.autograd.grad(out.loss, inputs), expected_grads):
            torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
        assert out.metrics["loss"] == pytest.approx(out.loss.item())


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("logit_scale", [1.0, 0.25])
@pytest.mark.parametrize("with_bias", [True, False])
def test_transforms_of_the_logits(softcap, logit_scale, with_bias, monkeypatch):
    batch = make_batch(v=29, n=13)
    hidden, weight, bias = head_inputs(batch)
    blocks_of(monkeypatch, 3, weight)
    bias = bias if with_bias else None
    inputs = [t for t in (hidden, weight, bias) if t is not None]
    for name in ("target_sft", "gem", "label_smoothing"):
        target = make_target(name)
        want = torch.autograd.grad(eager(hidden, weight, bias, batch, target, softcap, logit_scale), inputs)
        out = fused_target_loss(
            hidden, weight, batch.labels, target, batch.teacher,
            side=batch.side, bias=bias, softcap=softcap, logit_scale=logit_scale, chunk=4,
        )  # fmt: skip
        for got, expected in zip(torch.autograd.grad(out.loss, inputs), want):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


# A threshold may fall on the other side of a rounded p: no bound holds token by token.
SMOOTH = [row for row in CASES if row[0] not in ("profit", "psft") and "tau" not in row[1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "hparams"), SMOOTH)
def test_no_worse_than_eager_in_the_same_dtype(name, hparams, dtype):
    """Against float64 truth the fused head's error is at most the eager head's, plus rounding of the dtype."""
    batch = make_batch(n=17, v=31, empty=(5,), ignored=(3,), spread=1.0)
    exact = head_inputs(batch)
    exact = tuple(t.detach().to(dtype).double().requires_grad_() for t in exact)  # the same rounded inputs everywhere
    inputs = tuple(t.detach().to(dtype).requires_grad_() for t in exact)
    target = make_target(name, **hparams)
    truth = torch.autograd.grad(eager(*exact, batch, target), exact)
    slow = torch.autograd.grad(eager(*inputs, batch, target), inputs)
    out = fused_target_loss(
        inputs[0], inputs[1], batch.labels, target, batch.teacher, side=batch.side, bias=inputs[2], chunk=5
    )
    assert out.loss.dtype == torch.float32
    eps = torch.finfo(dtype).eps
    for got, eager_grad, true in zip(torch.autograd.grad(out.loss, inputs), slow, truth):
        assert got.dtype == dtype
        scale = true.abs().max()
        fused_error = (got.double() - true).abs().max()
        eager_error = (eager_grad.double() - true).abs().max()
        assert fused_error <= eager_error + 4 * eps * scale + 1e-6


@pytest.mark.parametrize("chunk", [None, 128], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize("name", ["sft", "target_sft"])
def test_bf16_gradients_of_a_mean_loss_are_no_worse_than_eager(name, chunk, monkeypatch):
    """The error is the root mean square against float64 of the gradients of a loss that the trainer has divided.

    Ours are rounded once more, because they are scaled after the matmuls; eager code rounds the scaled gradient of the
    logits instead. The weight's gradient is added up in several blocks.
    """
    monkeypatch.setattr(projection, "CPU_BLOCK_BYTES", 100_000)
    batch = make_batch(n=512, v=1000, k=8, dtype=torch.float32, ignored=(), empty=())
    hidden, weight, _ = (t.detach().bfloat16() for t in head_inputs(batch))
    target = make_target(name)

    def gradients(dtype, loss):
        inputs = hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()
        return torch.autograd.grad(loss(*inputs) / 777, inputs)

    def eager_loss(h, w):
        logits = h @ w.t()
        return target_loss(
            logits.to(torch.promote_types(torch.float32, logits.dtype)), batch.labels, target, batch.teacher
        )

    def fused_loss(h, w):
        return fused_target_loss(h, w, batch.labels, target, batch.teacher, chunk=chunk).loss

    truth = gradients(torch.float64, eager_loss)
    eager_gradients = gradients(torch.bfloat16, eager_loss)
    for got, plain, true in zip(gradients(torch.bfloat16, fused_loss), eager_gradients, truth):
        fused_error = (got.double() - true).square().mean().sqrt()
        eager_error = (plain.double() - true).square().mean().sqrt()
        assert fused_error <= 1.1 * eager_error


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "autocast"])
def test_bf16_on_a_cpu_needs_one_tile_and_one_gradient(weight_dtype, profiled_peak, product_scratch, monkeypatch):
    """Plain full logits need three float32 tiles; no second tile and no second gradient is needed here."""
    n, vocab, width = 96, 20_000, 64
    hidden = torch.randn(n, width).bfloat16().requires_grad_()
    weight = torch.randn(vocab, width).to(weight_dtype).requires_grad_()
    labels = torch.randint(vocab, (n,))
    block = 4 * vocab * 4
    monkeypatch.setattr(projection, "CPU_BLOCK_BYTES", block)

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            loss = fused_target_loss(hidden, weight, labels, make_target("sft")).loss
        loss.backward()

    tile = n * vocab * 2
    gradient = vocab * width * 2
    cast_weight = 0 if weight_dtype == torch.bfloat16 else vocab * width * 2
    scratch = product_scratch(hidden.detach(), weight.detach().bfloat16().t())
    assert profiled_peak(run) <= 1.1 * (tile + gradient + cast_weight + 2 * block) + scratch


class CountMatmuls(TorchDispatchMode):
    """Counts matrix products that touch the vocabulary dimension."""

    def __init__(self, vocab_size):
        super().__init__()
        self.vocab_size, self.count = vocab_size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.addmm_):
            shapes = [tuple(a.shape) for a in args if isinstance(a, torch.Tensor)]
            self.count += any(self.vocab_size in shape for shape in shapes)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "frozen", "grad", "count"),
    [
        ("target_sft", False, True, 3),
        ("sft", False, True, 3),
        ("gem", False, True, 3),
        ("target_sft", True, True, 2),
        ("target_sft", False, False, 1),
        ("iw_sft", False, True, 4),
        ("iw_sft", False, False, 2),
    ],
)
def test_number_of_matmuls(name, frozen, grad, count):
    batch = make_batch(v=23)
    hidden, weight, _ = head_inputs(batch)
    weight.requires_grad_(not frozen)
    with CountMatmuls(23) as counter, torch.set_grad_enabled(grad):
        out = fused_target_loss(
            hidden, weight, batch.labels, make_target(name), batch.teacher, side=batch.side, chunk=100
        )
        if grad:
            out.loss.backward()
    assert counter.count == count
    assert (weight.grad is None) == (frozen or not grad)


def test_incoming_gradient_is_applied_in_float32_before_the_cast():
    """A GradScaler's 2^16 on a small gradient must neither overflow nor vanish in float16."""
    batch = make_batch(dtype=torch.float32)
    hidden, weight, _ = head_inputs(batch, torch.float16)
    out = fused_target_loss(hidden, weight, batch.labels, make_target("sft"))
    (out.loss * 1e-7).backward()
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    (eager(exact[0], exact[1], None, batch, make_target("sft")) * 1e-7).backward()
    assert hidden.grad.abs().max() > 0
    torch.testing.assert_close(hidden.grad.double(), exact[0].grad, rtol=0.1, atol=6e-8)


def test_a_second_backward_raises():
    batch = make_batch()
    hidden, weight, _ = head_inputs(batch)
    out = fused_target_loss(hidden, weight, batch.labels, make_target("sft"))
    out.loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward"):
        out.loss.backward()


def test_autocast_computes_in_its_dtype_and_keeps_float32_statistics():
    batch = make_batch(dtype=torch.float32)
    hidden, weight, _ = head_inputs(batch, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = fused_target_loss(hidden, weight, batch.labels, make_target("target_sft"), batch.teacher)
    rounded = fused_target_loss(
        hidden.detach().bfloat16(), weight.detach().bfloat16(), batch.labels, make_target("target_sft"), batch.teacher
    )
    assert out.loss.dtype == torch.float32
    assert out.loss.item() == rounded.loss.item()
    out.loss.backward()
    assert hidden.grad.dtype == torch.float32


def test_no_labels_give_a_zero_that_is_connected():
    batch = make_batch()
    hidden, weight, _ = head_inputs(batch)
    for name in ("sft", "target_sft", "iw_sft", "gem"):
        out = fused_target_loss(
            hidden, weight, torch.full_like(batch.labels, -100), make_target(name), batch.teacher, side=batch.side
        )
        out.loss.backward()
        assert out.loss.item() == 0
        assert hidden.grad.abs().max() == 0


def test_own_loss_runs_through_it():
    def focal(logits, labels):
        logp = logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]
        return -((1 - logp.exp()) ** 2) * logp

    batch = make_batch()
    hidden, weight, bias = head_inputs(batch)
    keep = batch.labels >= 0
    want = focal((hidden @ weight.t() + bias)[keep], batch.labels[keep]).sum()
    out = fused_target_loss(hidden, weight, batch.labels, LossTarget(focal), bias=bias, chunk=2)
    torch.testing.assert_close(out.loss, want)
    for got, expected in zip(
        torch.autograd.grad(out.loss, (hidden, weight, bias)), torch.autograd.grad(want, (hidden, weight, bias))
    ):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["target_sft", "kd", "asft"])
def test_full_teacher(name):
    batch = make_batch()
    inputs = head_inputs(batch)
    teacher = Full(batch.full_teacher)
    want = eager(*inputs, batch, make_target(name), teacher=teacher)
    out = fused_target_loss(
        inputs[0], inputs[1], batch.labels, make_target(name), teacher, side=batch.side, bias=inputs[2], chunk=4
    )
    for got, expected in zip(torch.autograd.grad(out.loss, inputs), torch.autograd.grad(want, inputs)):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_repeated_ids_add_up():
    batch = make_batch(empty=())
    ids = batch.teacher.ids.clone()
    ids[:, 1] = ids[:, 0]
    inputs = head_inputs(batch)
    teacher = TopK(ids, batch.teacher.logps, batch.teacher.label_logp)
    want = eager(*inputs, batch, make_target("kd"), teacher=teacher)
    out = fused_target_loss(inputs[0], inputs[1], batch.labels, make_target("kd"), teacher, bias=inputs[2])
    for got, expected in zip(torch.autograd.grad(out.loss, inputs), torch.autograd.grad(want, inputs)):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


def test_ids_beyond_the_students_head_are_dropped_and_the_rest_renormalized():
    """Heads of 151,936 and 152,064 rows share a tokenizer; the student has no row for the teacher's padding."""
    batch = make_batch(empty=(), k=5)
    hidden, weight, _ = head_inputs(batch)
    ids = batch.teacher.ids.clone()
    ids[:, -1] = 23 + torch.arange(9)
    kept = TopK(ids[:, :-1], batch.teacher.logps[:, :-1] - torch.log1p(-batch.teacher.logps[:, -1:].exp()))
    for tail in ("drop", "ghost"):
        out = fused_target_loss(
            hidden, weight, batch.labels, make_target("target_sft", tail=tail), TopK(ids, batch.teacher.logps)
        )
        want = fused_target_loss(hidden, weight, batch.labels, make_target("target_sft", tail=tail), kept)
        torch.testing.assert_close(out.loss, want.loss)


def test_a_full_teacher_of_another_head_size():
    batch = make_batch()
    hidden, weight, _ = head_inputs(batch)
    padded = torch.nn.functional.pad(batch.full_teacher, (0, 4), value=float("-inf"))
    narrow = fused_target_loss(hidden, weight, batch.labels, make_target("kd"), Full(batch.full_teacher))
    wide = fused_target_loss(hidden, weight, batch.labels, make_target("kd"), Full(padded))
    torch.testing.assert_close(narrow.loss, wide.loss)
    fewer = Full(batch.full_teacher[:, :20].log_softmax(-1))
    assert torch.isfinite(fused_target_loss(hidden, weight, batch.labels, make_target("kd"), fewer).loss)


def test_invalid_input_raises_an_error():
    batch = make_batch(ignored=(0, 1))
    hidden, weight, _ = head_inputs(batch)
    labels = batch.labels.clone()
    labels[2], labels[4] = 0, 23  # the first token of a vocabulary is a label like any other
    with pytest.raises(ValueError, match=r"label 23 at label position 2 .* 23 rows"):
        fused_target_loss(hidden, weight, labels, make_target("sft"))
    labels[4] = -5  # not the mark of an ignored token
    with pytest.raises(ValueError, match="label -5 at label position 2"):
        fused_target_loss(hidden, weight, labels, make_target("sft"))
    wide = TopK(torch.zeros(9, 24, dtype=torch.long), torch.zeros(9, 24))
    with pytest.raises(ValueError, match="24 tokens per position"):
        fused_target_loss(hidden, weight, batch.labels, make_target("kd"), wide)


def test_what_is_not_a_target_raises_an_error(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it, without the tests' checks
    batch = make_batch()
    hidden, weight, _ = head_inputs(batch)
    with pytest.raises(TypeError, match=r"target is the text 'sft'.*make_target\('sft'\)"):
        fused_target_loss(hidden, weight, batch.labels, "sft")
    with pytest.raises(TypeError, match="target is a list"):
        target_loss(batch.logits, batch.labels, ["sft"])


@pytest.mark.parametrize("block", [1, 100])
def test_label_logps_equal_log_softmax(block, monkeypatch):
    batch = make_batch(ignored=())
    hidden, weight, bias = head_inputs(batch)
    blocks_of(monkeypatch, block, weight)
    logits = torch.tanh((hidden @ weight.t() + bias) * 0.5 / 3) * 3
    want = logits.log_softmax(-1).gather(-1, batch.labels[:, None])[:, 0]
    got = fused_label_logps(hidden, weight, bias, batch.labels, projection.Projection(3.0, 0.5), chunk=4)
    torch.testing.assert_close(got, want.detach())
    assert not got.requires_grad


def test_chunks_fit_the_tile_and_are_of_equal_size():
    gpu = (151_936, torch.float32, "cuda")
    assert tokens_per_chunk(512, *gpu) == 512
    assert tokens_per_chunk(1536, *gpu) == 768
    assert tokens_per_chunk(3, *gpu) == 3
    assert tokens_per_chunk(0, 100, torch.float32, "cuda") == 1
    assert tokens_per_chunk(10_000, *gpu) * 151_936 * 4 <= GPU_TILE_BYTES
    cpu = (151_936, torch.float32, "cpu")
    assert tokens_per_chunk(512, *cpu) == 512
    assert tokens_per_chunk(513, *cpu) == 257
    assert tokens_per_chunk(8192, *cpu, 4096) == 512
    assert tokens_per_chunk(0, *cpu) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_requested_tile_is_never_exceeded_unless_one_token_needs_more(device):
    for dtype in (torch.float32, torch.bfloat16):
        chunk = tokens_per_chunk(8192, 151_936, dtype, device, 4096, tile_mib=64)
        assert 60 <= chunk * 151_936 * dtype.itemsize / 2**20 <= 64
    assert tokens_per_chunk(8192, 151_936, torch.float32, device, 4096, tile_mib=0.1) == 1


@pytest.mark.parametrize("name", ["target_sft", "gem"])
def test_the_peak_is_below_two_tiles_and_two_gradients_whatever_the_number_of_tokens(name, profiled_peak, monkeypatch):
    vocab, width, chunk = 20_000, 32, 64
    weight = torch.randn(vocab, width, requires_grad=True)
    tile, grad_weight = chunk * vocab * 4, vocab * width * 4
    blocks_of(monkeypatch, 8, weight)
    beyond = {}
    for n in (64, 256):
        hidden, labels = torch.randn(n, width, requires_grad=True), torch.randint(vocab, (n,))
        teacher = TopK(torch.randint(vocab, (n, 8)), torch.randn(n, 8).log_softmax(-1))
        peak = profiled_peak(
            lambda: fused_target_loss(hidden, weight, labels, make_target(name), teacher, chunk=chunk).loss.backward()
        )
        beyond[n] = peak - n * width * 4 - grad_weight  # what is not a gradient
        assert tile < beyond[n] <= 2 * tile
    assert beyond[256] - beyond[64] < tile / 50  # only the teacher's rows grow with N


def test_the_sums_are_what_they_say():
    batch = make_batch(empty=(5,), ignored=())
    hidden, weight, _ = head_inputs(batch)
    out = fused_target_loss(hidden, weight, batch.labels, make_target("target_sft"), batch.teacher, chunk=4)
    m = out.metrics
    logp = (hidden @ weight.t()).detach().log_softmax(-1)
    p = logp.exp()
    label = logp.gather(-1, batch.labels[:, None])[:, 0]
    is_given = ~batch.teacher.empty
    p_t = batch.teacher.label_logp.exp()
    high, teacher_high = label.exp() >= 0.5, p_t >= 0.5
    assert m["tokens"] == 9
    assert m["nll"] == pytest.approx(-label.sum().item())
    assert m["gamma"] == pytest.approx(label.exp().sum().item())
    assert m["entropy"] == pytest.approx(-(p * logp).sum().item())
    assert m["top1"] == (p.argmax(-1) == batch.labels).sum()
    assert m["label_loss"] + m["residual_loss"] == pytest.approx(m["loss"])
    assert m["label_loss"] == pytest.approx(-(label * label.exp()).sum().item())
    assert m["fallback"] == 1
    assert m["teacher_tokens"] == 8
    live = batch.teacher.live
    assert m["support_mass"] == pytest.approx((p.gather(-1, batch.teacher.ids) * live)[is_given].sum().item())
    assert m["teacher_tail"] == pytest.approx((1 - batch.teacher.logps.exp().sum(-1))[is_given].sum().item())
    in_topk = ((batch.teacher.ids == batch.labels[:, None]) & live).any(-1)
    assert m["label_in_topk"] == in_topk[is_given].sum()
    assert m["teacher_disagrees"] == (batch.teacher.ids[:, 0] != batch.labels)[is_given].sum()
    assert m["rescue"] == (~high & teacher_high)[is_given].sum()
    assert m["filter"] == (~high & ~teacher_high)[is_given].sum()
    assert m["agree"] == (high & teacher_high)[is_given].sum()
    assert m["student_only"] == (high & ~teacher_high)[is_given].sum()
    bins = torch.tensor([m[f"gamma_bin_{i}"] for i in range(64)])
    centered = (label.exp() * 63).round().long()  # the first and last bin are 0 and 1 themselves
    torch.testing.assert_close(bins, torch.bincount(centered, minlength=64).float())
    assert len(SUM_NAMES) == len(out.sums)


def test_kept_counts_the_tokens_a_threshold_leaves():
    batch = make_batch(ignored=())
    hidden, weight, _ = head_inputs(batch)
    p = (hidden @ weight.t()).detach().softmax(-1).gather(-1, batch.labels[:, None])[:, 0]
    out = fused_target_loss(hidden, weight, batch.labels, make_target("profit", tau=0.05))
    assert out.metrics["kept"] == (p >= 0.05).sum()


@pytest.mark.parametrize(("factor", "counted"), [(3.0, 9), (-3.0, 0)])
def test_a_trust_beyond_one_or_below_zero_is_counted_as_one_or_zero(factor, counted):
    """An own loss may have any Q_y: here p_y + factor·(1 − p_y)."""
    batch = make_batch(ignored=(), spread=1.0)
    hidden, weight, _ = head_inputs(batch)
    own = LossTarget(lambda z, y: factor * torch.nn.functional.cross_entropy(z, y, reduction="none"))
    m = fused_target_loss(0.1 * hidden, weight, batch.labels, own).metrics
    assert m["gamma"] == counted
    assert m[f"gamma_bin_{0 if factor < 0 else 63}"] == 9


def test_teacher_sums_without_stored_label_logps():
    """A label outside the slots counts as unlikely when its own log-prob was not stored."""
    batch = make_batch(ignored=(), empty=())
    hidden, weight, _ = head_inputs(batch)
    teacher = TopK(batch.teacher.ids, batch.teacher.logps)
    m = fused_target_loss(hidden, weight, batch.labels, make_target("kd"), teacher).metrics
    assert m["rescue"] + m["filter"] + m["agree"] + m["student_only"] == 9
    full = fused_target_loss(hidden, weight, batch.labels, make_target("kd"), Full(batch.full_teacher)).metrics
    assert full["label_in_topk"] == 9
    assert full["teacher_tail"] == 0


def test_side_inputs_of_ignored_tokens_are_left_out():
    batch = make_batch(ignored=(0, 8))
    hidden, weight, bias = head_inputs(batch)
    side = SideInputs(critical=torch.ones(9))
    cft = fused_target_loss(hidden, weight, batch.labels, make_target("cft"), side=side, bias=bias)
    sft = fused_target_loss(hidden, weight, batch.labels, make_target("sft"), bias=bias)
    torch.testing.assert_close(cft.loss, sft.loss)


@pytest.mark.parametrize("name", ["sft_kl", "asft"])
def test_the_anchor_of_a_truncated_reference_does_not_pull_the_reference_itself(name):
    """With R = π_ref and θ = ref only the label's gradient is left, though the cache holds a few tokens only."""
    batch = make_batch(ignored=(), empty=())
    hidden, weight, _ = head_inputs(batch)
    logps, ids = (hidden @ weight.t()).detach().log_softmax(-1).topk(4)
    anchored = fused_target_loss(hidden, weight, batch.labels, make_target(name), TopK(ids, logps))
    free = fused_target_loss(hidden, weight, batch.labels, make_target({"sft_kl": "sft", "asft": "dft"}[name]))
    got, want = (torch.autograd.grad(out.loss, hidden)[0] for out in (anchored, free))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


def test_a_ratio_beyond_float_is_clipped_and_not_nan():
    batch = make_batch(ignored=())
    hidden, weight, _ = head_inputs(batch, torch.float32)
    side = SideInputs(old_logp=torch.full((9,), -200.0))
    out = fused_target_loss(hidden, weight, batch.labels, make_target("psft"), side=side)
    assert out.loss.item() == pytest.approx(-9 * 1.28)  # −min(r, 1+ε), finite though r is not
    assert torch.autograd.grad(out.loss, hidden)[0].abs().max() == 0.0


@pytest.mark.parametrize("log_tail", [-9.0, -14.0, -18.0, -40.0])
@pytest.mark.parametrize("name", ["sft_kl", "target_sft"])
def test_a_small_tail_is_right_in_float32(name, log_tail):
    """1 − Σp was 5 to 12 % wrong at tails of 1e-4 to 1e-6 and jumped to 0 at 3e-7."""
    hidden = torch.eye(6, dtype=torch.float64)[:1]
    logits = torch.tensor([2.0, 1.5, 0.5, log_tail, log_tail - 1, log_tail + 0.3], dtype=torch.float64)
    weight, labels = logits[:, None] * hidden, torch.tensor([1])
    teacher = TopK(torch.tensor([[0, 1, 2]]), torch.tensor([[-0.7, -0.9, -2.4]]), None, torch.tensor([log_tail]))
    target = make_target(name, tail="ghost")
    grads = []
    for dtype in (torch.float64, torch.float32):
        h = hidden.to(dtype)
        w = weight.to(dtype).requires_grad_()
        loss = fused_target_loss(h, w, labels, target, teacher).loss
        grads.append(torch.autograd.grad(loss, w)[0][:, 0].double())
    outside, inside = (grads[1] - grads[0])[3:] / grads[0][3:], (grads[1] - grads[0])[:3]
    assert outside.abs().max() < 1e-4
    assert inside.abs().max() < 1e-6


def test_float16_weight_gradients_do_not_overflow_before_the_loss_is_scaled():
    """Two thousand equal labels: the sum is beyond 65,504, its mean is not."""
    hidden = torch.full((2000, 4), 50.0, dtype=torch.float16)
    weight = torch.zeros(8, 4, dtype=torch.float16, requires_grad=True)
    labels = torch.full((2000,), 3)
    (fused_target_loss(hidden, weight, labels, make_target("sft"), chunk=500).loss / 2000).backward()
    torch.testing.assert_close(weight.grad[3], torch.full((4,), -50.0 * 7 / 8, dtype=torch.float16))


def test_on_a_gpu_a_chunk_has_at_least_as_many_tokens_as_the_weight_has_columns():
    """Each chunk moves the whole gradient of the weight: at N=8192, H=4096, V=151,936 two chunks, not ten."""
    assert tokens_per_chunk(8192, 151_936, torch.float32, "cuda", 4096) == 4096
    assert tokens_per_chunk(8192, 151_936, torch.float32, "cuda") < 900  # a frozen head


def test_a_teacher_with_a_larger_vocabulary_is_renormalized_on_the_heads_entries():
    batch = make_batch()
    hidden, weight, _ = head_inputs(batch)
    wide = torch.randn(9, 27, dtype=torch.float64).log_softmax(-1)
    got = fused_target_loss(hidden, weight, batch.labels, make_target("kd"), Full(wide))
    want = fused_target_loss(hidden, weight, batch.labels, make_target("kd"), Full(wide[:, :23].log_softmax(-1)))
    torch.testing.assert_close(got.loss, want.loss)


def test_a_negative_id_is_an_empty_slot():
    batch = make_batch(empty=(), k=5)
    hidden, weight, _ = head_inputs(batch)
    ids, logps = batch.teacher.ids.clone(), batch.teacher.logps.clone()
    ids[:, -1] = -1
    emptied = TopK(ids.clamp(min=0), logps.index_fill(-1, torch.tensor([4]), float("-inf")))
    for name in ("kd", "target_sft"):
        got, want = (
            fused_target_loss(hidden, weight, batch.labels, make_target(name), teacher).loss
            for teacher in (TopK(ids, logps), emptied)
        )
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("wrong", ["labels", "teacher", "side"])
def test_inputs_of_different_lengths_raise_an_error(wrong, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the tests' own checks of types come first
    batch = make_batch(ignored=(), empty=())
    inputs = {"labels": batch.labels, "teacher": batch.teacher, "side": batch.side}
    inputs[wrong] = inputs[wrong][:4]
    hidden = torch.randn(len(batch.labels), 6, dtype=torch.float64)
    weight = torch.randn(batch.logits.shape[-1], 6, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"for 4 labels|4 entries for 9 labels"):
        fused_target_loss(hidden, weight, target=make_target("kd"), **inputs)
    with pytest.raises(ValueError, match=r"for 4 labels|4 entries for 9 labels"):
        target_loss(batch.logits, target=make_target("kd"), **inputs)
