"""The benchmarks run: step, capture and grading in small, and with what they use on a GPU."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks/ is not a part of the package

from benchmarks import bench_cache, bench_grading, bench_head, bench_step, measure, peers

MODULES = (measure, peers, bench_head, bench_step, bench_cache)


@pytest.fixture
def with_gpu(monkeypatch):
    """The benchmarks as a machine with a GPU and Liger imports them."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(importlib.util, "find_spec", lambda name: object())
        for module in MODULES:
            importlib.reload(module)
    yield
    for module in MODULES:
        importlib.reload(module)


def test_the_head_is_measured_beside_the_peers_and_by_its_tile(monkeypatch):
    small = bench_head.Shape(8, 16, 300, "bfloat16")
    monkeypatch.setitem(bench_head.ALL_SHAPES, "small", small)
    monkeypatch.setattr(bench_head, "megabytes", lambda *_: 1.0)  # a process each
    methods = bench_head.measure("small", 1)["methods"]
    assert methods["bare matmuls"]["of bare matmuls"] == 1.0
    assert all(row["seconds"] > 0 for row in methods.values())
    chunks = bench_head.measure_tiles("small", 1)["chunks"]
    assert min(row["of the best"] for row in chunks.values()) == 1.0
    assert chunks["512 tokens"]["tile MiB"] == 512 * 300 * 2 / 2**20


def test_with_a_gpu_head_step_and_capture_run_there_with_liger_beside_them(with_gpu, monkeypatch):
    assert "Liger fused head" in bench_head.METHODS
    assert bench_step.LIGER in bench_step.METHODS
    monkeypatch.setattr(bench_step, "model", lambda seed=0: None)
    monkeypatch.setattr(bench_step, "tokenizer", lambda: None)
    monkeypatch.setattr(bench_step, "SFTConfig", lambda **settings: settings)
    monkeypatch.setattr(bench_step, "SFTTrainer", lambda model, settings, **_: settings)
    settings = bench_step.make_trainer(bench_step.LIGER, 0, Path())
    assert (settings["use_cpu"], settings["bf16"], settings["use_liger_kernel"]) == (False, True, True)
    assert (measure.DEVICE, bench_cache.DEVICE, bench_cache.BATCH_TOKENS) == ("cuda", "cuda", 16_384)


def test_grading_accepts_every_answer_that_math_verify_accepts():
    grades = bench_grading.with_qsft()
    assert len(grades) == len(bench_grading.pairs())
    assert all(grade for grade, verified in zip(grades, bench_grading.with_math_verify()) if verified)


@pytest.mark.slow
def test_step_and_capture_are_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_step, "VOCABULARY", 500)
    monkeypatch.setattr(bench_cache, "VOCABULARY", 500)
    monkeypatch.setattr(bench_step, "peak_megabytes", lambda *_: 1.0)  # a process each
    step = bench_step.measure(4, 1, tmp_path)
    assert step["TRL nll"]["time of TRL"] == 1.0
    assert all(row["seconds"] > 0 for row in step.values())
    assert bench_step.peak_bytes(bench_step.make_trainer("qsft target_sft", 4, tmp_path)) > 0
    capture = bench_cache.capture_share(1, count=4, longest=16)
    assert capture["bare forward (labels' logits)"]["share of least"] == 1.0
    assert all(row["label tokens/s"] for row in capture.values())
