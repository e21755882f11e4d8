"""`qsft plan` on a tiny model: what it counts and what it prints."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from qsft.cli import main
from qsft.recipe import plan as plan_module
from qsft.recipe.memory import STRATEGIES, StepShape, trace_step
from qsft.recipe.model_shapes import SHAPES, known_config
from qsft.recipe.plan import LABEL_TOKENS, Throughput, make_plan, plan_lines
from qsft.recipe.recipe_file import packaged_recipes, read_recipe
from qsft.teacher.format.encoding import bytes_per_label_token


def test_the_plan_counts_documents_label_tokens_cache_and_steps(tiny_run, capsys):
    words = ["plan", "numina_qwen_math_1p5b", "--gpus", "4", "--gpu_memory", "0.001", *tiny_run("numina").words]
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "documents 64" in printed
    rows = [json.loads(line)["extra_info"]["answer"] for line in tiny_run("numina").data.read_text().splitlines()[:64]]
    labels = sum(len(answer.split()) + 1 for answer in rows)
    assert f"label tokens {labels}" in printed
    assert "optimizer steps 4" in printed
    assert "4 per GPU × 1 accumulation × 4 GPUs" in printed
    for name in (*STRATEGIES, "LoRA + DDP"):
        assert name in printed


def test_hours_follow_from_tokens_per_second(tiny_run, capsys):
    plan = make_plan(read_recipe("numina_qwen_math_1p5b", tiny_run("numina").words))
    rows = [json.loads(line)["extra_info"] for line in tiny_run("numina").data.read_text().splitlines()[:64]]
    answers = sum(len(row["answer"].split()) + 1 for row in rows)
    questions = sum(len(row["question"].split()) for row in rows)
    assert plan.corpus.label_tokens == answers
    assert plan.corpus.tokens >= answers + questions  # the chat template adds some

    lines = dict(
        plan_lines(plan, Throughput(train_tokens=plan.corpus.tokens / 7200, capture_label_tokens=answers / 90))
    )
    assert lines["one epoch"].startswith("2.0 hours at ")
    assert lines["capture"].startswith("1.5 minutes at ")
    assert "--train_tokens_per_second N prints the hours" in dict(plan_lines(plan))["one epoch"]

    words = ["plan", "numina_qwen_math_1p5b", *tiny_run("numina").words, "--train_tokens_per_second", "0"]
    assert main(words) == 2
    assert "--train_tokens_per_second = 0.0 is out of range" in capsys.readouterr().err


def test_bf16_weights_take_half_the_memory_of_float32_weights(tiny_run):
    memory = make_plan(read_recipe("numina_qwen_math_1p5b", [*tiny_run("numina").words, "--bf16", "true"])).memory
    for part in ("weights", "gradients"):
        assert getattr(memory["DDP, bf16 weights"], part) * 2 == getattr(memory["DDP"], part)
    assert memory["DDP, bf16 weights"].optimizer < 0.51 * memory["DDP"].optimizer


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
def test_a_cache_of_unknown_size_is_given_per_label_token(encoding, tiny_run, tmp_path, capsys):
    (tmp_path / "mine.jsonl").write_text('{"text": "w1 w2"}\n' * 16)
    words = ["--dataset_name", str(tmp_path / "mine.jsonl"), "--data_dir", "null", "--teacher_cache_encoding", encoding]
    assert main(["plan", "numina_qwen_math_1p5b", *tiny_run("numina").words, *words]) == 0
    assert f"about {bytes_per_label_token(encoding, 64, 320):.0f} bytes per label token" in capsys.readouterr().out


def test_a_model_that_is_nowhere_is_named(capsys):
    assert main(["plan", "numina_qwen_math_1p5b", "--model_name_or_path", "Qwen/Nosuch"]) == 2
    error = capsys.readouterr().err
    assert "there is no model 'Qwen/Nosuch'" in error
    assert "Check the path or id" in error


# Parameters in millions, as the models' cards say.
MILLIONS = {
    "Qwen/Qwen2.5-Math-1.5B": 1544,
    "Qwen/Qwen2.5-1.5B": 1544,
    "Qwen/Qwen2.5-Math-7B": 7616,
    "Qwen/Qwen2.5-7B": 7616,
    "Qwen/Qwen3-1.7B-Base": 1721,
    "meta-llama/Llama-3.2-3B": 3213,
    "meta-llama/Llama-3.1-8B": 8030,
}


@pytest.mark.parametrize("model", SHAPES)
def test_known_shapes_have_the_parameters_of_the_models(model):
    with torch.device("meta"):
        causal = AutoModelForCausalLM.from_config(known_config(model))
    assert sum(p.numel() for p in causal.parameters()) / 1e6 == pytest.approx(MILLIONS[model], abs=1)


def test_every_student_of_the_paper_is_known():
    papers = [read_recipe(file) for file in packaged_recipes() if file.stem != "demo"]
    assert {recipe.values["model_name_or_path"] for recipe in papers} == set(SHAPES)
    assert {recipe.values["dataset_name"] for recipe in papers} == set(LABEL_TOKENS)


STEPS = {"openr1": 58, "numina": 264, "m23k": 91}
PAPERS = [file.stem for file in packaged_recipes() if file.stem != "demo"]


@pytest.fixture(scope="module")
def one_layer():
    """A trace of one layer, in place of the models' own."""
    config = known_config("Qwen/Qwen2.5-Math-1.5B")
    config.num_hidden_layers = 1
    return trace_step(config, StepShape(1, 8, torch.bfloat16))


@pytest.mark.parametrize("recipe", PAPERS)
def test_every_recipe_of_the_paper_is_planned_without_a_network(recipe, one_layer, capsys, monkeypatch):
    monkeypatch.setattr(plan_module, "trace_step", lambda *_: one_layer)
    says_what_was_published(recipe, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["openr1_qwen_math_1p5b", "numina_qwen3_1p7b", "m23k_llama_8b"])
def test_all_layers_of_a_model_are_traced_without_a_network(recipe, capsys):
    says_what_was_published(recipe, capsys)


def says_what_was_published(recipe, capsys):
    assert main(["plan", recipe, "--gpus", "8"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"optimizer steps {STEPS[recipe.split('_')[0]]} " in printed
    # documents, label tokens, the cache's size, the tokens of a capture and of an epoch
    assert printed.count("an estimate") == 5
