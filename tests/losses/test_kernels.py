"""The two kernels equal the torch path, in Triton's interpreter, and compile for the GPUs they are meant for."""

import json
import subprocess
import sys

import pytest
import torch
from cases import CASES, IDS, make_batch

from qsft import LossTarget, Target, TopK, fused_target_loss, make_target
from qsft.losses import kernel_path
from qsft.losses.fused import Spec
from qsft.losses.kernel_path import TilePart
from qsft.losses.projection import Projection
from qsft.targets.view import Full

pytest.importorskip("triton")

H = 11
WHOLE_TILE = ("gem", "eaft", "label_smoothing")


@pytest.fixture
def launched(monkeypatch):
    """How often each kernel ran."""
    from qsft.losses import kernels

    counts = {"row_statistics": 0, "write_gradient": 0}
    for name in counts:
        original = getattr(kernels, name)

        def counted(*args, name=name, original=original):
            counts[name] += 1
            return original(*args)

        monkeypatch.setattr(kernels, name, counted)
    return counts


def both(batch, target, dtype=torch.float32, teacher=None, bias=True, **options):
    """(loss, sums, gradients) of the torch path and of the kernels on the same inputs."""
    g = torch.Generator().manual_seed(0)
    n, v = batch.logits.shape
    sizes = ((n, H), (v, H), (v,))
    inputs = [torch.randn(*size, generator=g).mul(0.6).to(dtype).requires_grad_() for size in sizes]
    results = []
    for kernel in ("torch", "triton"):
        out = fused_target_loss(
            inputs[0], inputs[1], batch.labels, target, teacher or batch.teacher,
            side=batch.side, bias=inputs[2] if bias else None, head_kernel=kernel, **options,
        )  # fmt: skip
        inputs_with_gradient = inputs if bias else inputs[:2]
        results.append((out.loss.detach(), out.sums, torch.autograd.grad(out.loss, inputs_with_gradient)))
    return results


def assert_equal(results, gradient_tolerance):
    (loss, sums, grads), (kernel_loss, kernel_sums, kernel_grads) = results
    torch.testing.assert_close(kernel_loss, loss, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(kernel_sums, sums, rtol=1e-5, atol=1e-5)
    for got, want in zip(kernel_grads, grads):
        assert (got - want).abs().max() <= gradient_tolerance * max(1.0, want.abs().max().item())


def dtypes():
    """Every row in float32; in bf16 the first of each name, the others where time is no matter."""
    seen = set()
    for (name, hparams), label in zip(CASES, IDS, strict=True):
        yield pytest.param(name, hparams, torch.float32, id=f"{label}-fp32")
        yield pytest.param(name, hparams, torch.bfloat16, id=f"{label}-bf16", marks=[pytest.mark.slow] * (name in seen))
        seen.add(name)


@pytest.mark.parametrize(("name", "hparams", "dtype"), dtypes())
def test_equal_to_the_torch_path(name, hparams, dtype, launched):
    batch = make_batch(dtype=torch.float32)
    # The interpreter truncates to bf16 where a GPU rounds: an ulp apart.
    assert_equal(both(batch, make_target(name, **hparams), dtype, chunk=5), 1e-6 if dtype == torch.float32 else 1.6e-2)
    runs = 0 if name in WHOLE_TILE else 2  # of each kernel: one per chunk
    assert launched == {"row_statistics": runs, "write_gradient": runs}


@pytest.mark.parametrize("name", ["target_sft", "asft", "dft"])
@pytest.mark.parametrize(("softcap", "logit_scale"), [(None, 0.25), (2.0, 1.0), (2.0, 0.25)])
def test_bias_scale_and_softcap_are_applied_as_the_tile_is_read(name, softcap, logit_scale, launched):
    batch = make_batch(dtype=torch.float32, vocab_size=20)  # the last rows of the head are padding
    for bias in (True, False):
        assert_equal(both(batch, make_target(name), bias=bias, softcap=softcap, logit_scale=logit_scale), 1e-6)
    assert launched["write_gradient"] == 2


@pytest.mark.parametrize("name", ["target_sft", "sft_kl"])
@pytest.mark.parametrize("vocab", [64, 65, 130])
def test_rows_longer_than_a_block(name, vocab, monkeypatch):
    from qsft.losses import kernels

    monkeypatch.setattr(kernels, "BLOCK", 32)
    batch = make_batch(n=6, v=vocab, dtype=torch.float32)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1.6e-2)):
        assert_equal(both(batch, make_target(name), dtype), tolerance)


@pytest.mark.parametrize("best", [(7,), (40,), (199,), (40, 41), (31, 32), (5, 150), (0, 64, 199)])
def test_the_largest_is_found_across_blocks_and_of_equals_the_first(best, monkeypatch):
    from qsft.losses import kernels

    monkeypatch.setattr(kernels, "BLOCK", 32)  # 200 columns: seven blocks, the last with eight
    tile = torch.randn(3, 200, generator=torch.Generator().manual_seed(0))
    tile[1, list(best)] = tile.max() + 1
    found = kernels.row_statistics(tile, None, Projection())
    assert found.best.tolist() == tile.argmax(dim=-1).tolist()
    assert found.best[1] == best[0]
    torch.testing.assert_close(found.top, tile.amax(dim=-1), rtol=0, atol=0)
    torch.testing.assert_close(found.lse, tile.logsumexp(dim=-1))
    torch.testing.assert_close(found.mean, (tile.softmax(-1) * tile).sum(-1))


@pytest.mark.parametrize("best", [(3,), (40,), (3, 40), (40, 60), (60, 3), (9, 60)])
def test_the_largest_is_found_among_slots_and_outside_them(best, monkeypatch):
    """A ghost takes the slots out of the tile for the one pass: they come back into the statistics."""
    from qsft.losses import kernels

    monkeypatch.setattr(kernels, "BLOCK", 32)
    batch = make_batch(n=2, v=65, dtype=torch.float32, ignored=(), empty=())
    slots_of = torch.tensor([[60, 40, 9, 9, 9]] * 2)
    teacher = TopK(slots_of, torch.full((2, 5), -2.0))
    tile = torch.randn(2, 65, generator=torch.Generator().manual_seed(0))
    tile[:, list(best)] = tile.max() + 1
    before = tile.clone()
    target = make_target("kd", tail="ghost")
    spec = Spec(batch.labels, target, teacher, batch.side, Projection(), 2, *[torch.float32] * 3,
                (True, True, False), "triton")  # fmt: skip
    row, outside = kernel_path.KernelTile(spec, None, True)._statistics_and_outside(
        tile, kernel_path.GatherOnly.of(tile, Projection(), None), slots_of
    )
    assert torch.equal(tile, before)
    assert row.best.tolist() == [min(best)] * 2
    torch.testing.assert_close(row.lse, tile.logsumexp(dim=-1))
    torch.testing.assert_close(row.mean, (tile.softmax(-1) * tile).sum(-1))
    torch.testing.assert_close(outside, tile.scatter(-1, slots_of, float("-inf")).logsumexp(dim=-1))


def test_repeated_ids_and_slots_of_the_whole_vocabulary(launched):
    batch = make_batch(dtype=torch.float32, empty=())
    ids = batch.teacher.ids.clone()
    ids[:, 1] = ids[:, 0]
    everything = torch.arange(23).repeat(9, 1)
    full = TopK(everything, batch.full_teacher.float().gather(-1, everything), batch.teacher.label_logp)
    for teacher in (TopK(ids, batch.teacher.logps, batch.teacher.label_logp), full):
        for target in (make_target("kd", tail="ghost"), make_target("target_sft")):
            assert_equal(both(batch, target, teacher=teacher), 1e-6)
    assert launched["row_statistics"] == 4


def test_own_targets_take_the_kernels_unless_they_read_the_whole_tile(launched):
    batch = make_batch(dtype=torch.float32)
    own = Target(lambda view: (0.5 * view.label_logp).exp(), make_target("target_sft").residual)
    assert_equal(both(batch, own), 1e-6)
    assert launched["write_gradient"] == 1
    whole = [
        Target(lambda view: view.logits.softmax(-1).amax(-1), make_target("target_sft").residual),
        Target(lambda view: 0.5 * torch.ones_like(view.lse), lambda view: torch.full((len(view.lse), 23), 1 / 23)),
        LossTarget(lambda z, y: torch.nn.functional.cross_entropy(z, y, reduction="none")),
    ]  # fmt: skip
    for target in whole:
        assert_equal(both(batch, target), 1e-6)
    assert_equal(both(batch, make_target("kd"), teacher=Full(batch.full_teacher.float())), 1e-6)
    assert launched["write_gradient"] == 1


def test_without_gradients_only_statistics_are_taken(launched):
    batch = make_batch(dtype=torch.float32)
    hidden, weight = torch.randn(9, H), torch.randn(23, H)
    with torch.no_grad():
        fused_target_loss(hidden, weight, batch.labels, make_target("dft"), head_kernel="triton")
    assert launched == {"row_statistics": 1, "write_gradient": 0}


def test_only_ghosts_ask_for_what_is_outside_the_slots():
    batch = make_batch(dtype=torch.float32, ignored=())
    for name, hparams in CASES:
        target = make_target(name, **hparams)
        side = target.prepare(batch.side, batch.teacher, lambda: batch.side.ref_logp)
        spec = Spec(batch.labels, target, batch.teacher, side, Projection(), 9, *[torch.float32] * 3,
                    (True, True, True), "triton")  # fmt: skip
        reads_ghosts = hparams.get("tail") == "ghost" and hparams.get("eta") != 0.0
        expected = TilePart.SLOTS_AND_OUTSIDE if reads_ghosts else TilePart.SLOTS
        if name in WHOLE_TILE:
            expected = TilePart.WHOLE
        assert kernel_path.find_part_read(spec, torch.empty(9, 23)) is expected, (name, hparams)


def test_the_kernel_is_chosen_by_device_and_word(monkeypatch):
    batch = make_batch(dtype=torch.float32)
    inputs = torch.randn(9, H), torch.randn(23, H), batch.labels, make_target("sft")
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ValueError, match=r'needs triton and a CUDA or ROCm device; "auto"'):
        fused_target_loss(*inputs, head_kernel="triton")
    with pytest.raises(ValueError, match="'auto', 'torch', 'triton'"):
        fused_target_loss(*inputs, head_kernel="cuda")
    torch.testing.assert_close(
        fused_target_loss(*inputs).loss, fused_target_loss(*inputs, head_kernel="torch").loss, rtol=0, atol=0
    )


COMPILE = """
import json, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from qsft.losses import kernels
common = {"size": "i32", "row_stride": "i32", "scale": "fp32", "softcap": "fp32"}
for dtype, extra in json.loads(sys.argv[2]):
    constants = {"HAS_BIAS": extra, "CAPPED": extra, "BLOCK": kernels.BLOCK}
    constants |= {} if extra else {"bias": None}
    pointers = {"tile": "*fp32", "bias": "*" + dtype}
    outs = {name: "*fp32" for name in ("top_out", "lse_out", "mean_out")} | {"best_out": "*i64"}
    given = {"grad": "*" + dtype, "lse_in": "*fp32", "factor_in": "*fp32", "grad_stride": "i32"}
    for kernel, signature in (
        (kernels.row_statistics_kernel, pointers | outs | common),
        (kernels.write_gradient_kernel, pointers | given | common),
    ):
        types = {name: signature.get(name, "constexpr") for name in kernel.arg_names}
        types |= {name: "constexpr" for name in constants}
        fixed = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        target = GPUTarget("cuda", int(sys.argv[1]), 32)
        built = compile(ASTSource(kernel, types, fixed), target=target, options={"num_warps": kernels.WARPS})
        print(kernel.__name__, dtype, extra, len(built.asm["cubin"]), built.metadata.shared)
        assert built.asm["cubin"]
"""


SLOW = pytest.mark.slow
KINDS = [(dtype, extra) for dtype in ("bf16", "fp32") for extra in (False, True)]  # extra: with bias and soft-cap


@pytest.mark.parametrize(
    ("capability", "kinds"), [(90, [("bf16", True)]), *(pytest.param(sm, KINDS, marks=SLOW) for sm in (80, 90, 100))]
)
def test_compiles_ahead_of_time(capability, kinds, monkeypatch, tmp_path):
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    command = [sys.executable, "-c", COMPILE, str(capability), json.dumps(kinds)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("kernel") == 2 * len(kinds)
