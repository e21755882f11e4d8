"""`qsft plan` on a tiny model: what it counts and what it prints."""

import json

from qsft.cli import main
from qsft.recipe.memory import STRATEGIES


def test_the_plan_counts_documents_label_tokens_cache_and_steps(tiny_run, capsys):
    words = ["plan", "numina_qwen_math_1p5b", "--gpus", "4", "--gpu_memory", "0.001", *tiny_run("numina").words]
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "documents 64" in printed
    rows = [json.loads(line)["extra_info"]["answer"] for line in tiny_run("numina").data.read_text().splitlines()[:64]]
    labels = sum(len(answer.split()) + 1 for answer in rows)
    assert f"label tokens {labels}" in printed
    assert "optimiser steps 4" in printed
    assert "4 per GPU × 1 accumulation × 4 GPUs" in printed
    for name in (*STRATEGIES, "LoRA + DDP"):
        assert name in printed


def test_a_plan_beyond_the_global_batch_names_the_counts_that_work(tiny_run, capsys):
    assert main(["plan", "numina_qwen_math_1p5b", "--gpus", "3", *tiny_run("numina").words]) == 2
    assert "Process counts that work: 1, 2, 4, 8, 16" in capsys.readouterr().err
