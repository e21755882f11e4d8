"""`qsft plan` on a tiny model: what it counts and what it prints."""

import json

import pytest

from qsft.cli import main
from qsft.recipe.budget import make_plan
from qsft.recipe.memory import STRATEGIES
from qsft.recipe.recipe_file import read_recipe
from qsft.teacher.encoding import row_bytes


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


def test_packed_rows_are_planned_at_their_full_length(tiny_run):
    words = tiny_run("numina").words
    apart, packed, longer = (
        make_plan(read_recipe("numina_qwen_math_1p5b", [*words, "--packing", packing, "--max_length", length]))
        for packing, length in (("false", "256"), ("true", "256"), ("true", "512"))
    )
    assert apart.corpus.longest < 64  # the longest document
    assert (packed.corpus.longest, packed.corpus.most_labels) == (256, 256)
    for part in ("activations", "head"):
        sizes = [getattr(plan.memory["DDP"], part) for plan in (apart, packed, longer)]
        assert sizes == sorted(set(sizes)), part


@pytest.mark.parametrize("encoding", ["exact", "compact"])
def test_a_cache_of_unknown_size_is_told_by_its_row(encoding, tiny_run, tmp_path, capsys):
    (tmp_path / "mine.jsonl").write_text('{"text": "w1 w2"}\n' * 16)
    words = ["--dataset", str(tmp_path / "mine.jsonl"), "--data_dir", "null", "--teacher_cache_encoding", encoding]
    assert main(["plan", "numina_qwen_math_1p5b", *tiny_run("numina").words, *words]) == 0
    assert f"about {row_bytes(encoding, 64, 320):.0f} bytes per label token" in capsys.readouterr().out


def test_a_model_that_is_nowhere_is_named(capsys):
    assert main(["plan", "numina_qwen_math_1p5b"]) == 2
    said = capsys.readouterr().err
    assert "there is no model 'Qwen/Qwen2.5-Math-1.5B'" in said
    assert "--model_name_or_path DIR" in said
