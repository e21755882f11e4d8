"""The model of the head's cost agrees with published figures and with the code it counts."""

import pytest
import torch

from qsft import TopK, fused_target_loss, make_target
from qsft.losses import matmuls
from qsft.recipe.head_cost import GPUS, PUBLISHED_MATMULS, PUBLISHED_SHAPE, head_bytes, head_cost, head_lines

H100 = "H100"


def test_the_three_matmuls_are_within_a_fifth_of_the_published_time():
    low, high = PUBLISHED_MATMULS
    assert 0.8 * low <= 1e3 * head_cost(*PUBLISHED_SHAPE, H100).matmuls <= 1.2 * high


def test_tiles_by_shape_and_kernels_make_the_passes_cheap(monkeypatch):
    now, torch_path = (head_cost(*PUBLISHED_SHAPE, H100, kernels=kernels) for kernels in (True, False))
    # 12 bytes per logit and 16 per element of the weight, see head_cost.py, at 80 % of 3.35 TB/s.
    tokens, hidden, vocabulary = PUBLISHED_SHAPE
    moved = 12 * tokens * vocabulary + 16 * vocabulary * hidden + 8 * tokens * hidden
    assert now.passes == pytest.approx(moved / (0.8 * 3.35e12))
    assert 1e3 * now.passes == pytest.approx(9.4, abs=0.05)
    assert now.passes < 0.6 * torch_path.passes
    many = 8192 // 10
    monkeypatch.setattr("qsft.recipe.head_cost.tokens_per_chunk", lambda *_: many)  # the tiles of 512 MB there were
    assert 1e3 * head_cost(*PUBLISHED_SHAPE, H100, kernels=False).passes > 35


def test_the_peak_is_what_the_torch_path_holds(profiled_peak, monkeypatch):
    """In bf16 on a CPU, whose matmuls write bf16 first: one product of the weight's shape or the tile's more."""
    tokens, hidden, vocabulary = 128, 64, 8000
    monkeypatch.setattr(matmuls, "TILE_BYTES", 64 * vocabulary * 4)
    monkeypatch.setattr(matmuls, "CPU_BLOCK_BYTES", 8 * vocabulary * 4)
    h, w = (torch.randn(n, hidden).bfloat16().requires_grad_() for n in (tokens, vocabulary))
    labels = torch.randint(vocabulary, (tokens,))
    teacher = TopK(torch.randint(vocabulary, (tokens, 4)), torch.randn(tokens, 4).log_softmax(-1))
    measured = profiled_peak(
        lambda: fused_target_loss(h, w, labels, make_target("target_sft"), teacher).loss.backward()
    )
    modelled = head_bytes(tokens, hidden, vocabulary, top_k=4, device="cpu")
    assert modelled == pytest.approx(measured, rel=0.25)


def test_with_kernels_the_head_holds_a_tile_and_two_gradients():
    tokens, hidden, vocabulary = PUBLISHED_SHAPE
    held = 4 * (4096 * vocabulary + vocabulary * hidden + tokens * hidden)
    assert head_cost(*PUBLISHED_SHAPE, H100).peak == held
    assert held / 2**30 == pytest.approx(4.8, abs=0.05)


def test_the_lines_name_the_gpus_and_say_that_it_is_a_model():
    lines = dict(head_lines(8192, 4096, 151_936))
    assert [f"head on {gpu}" for gpu in GPUS] == list(lines)[:3]
    assert "a model, not a measurement" in lines[""]
    assert "Liger 192 ms / 6.1 GiB" in lines[""]
