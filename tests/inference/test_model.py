"""A model to sample from: adapters with their base, and weights that are not loaded."""

import os
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from qsft.inference.model import InferenceModel
from qsft.inference.sampling import Request, Sampling
from qsft.inference.vllm_engine import EngineOptions


def test_an_adapter_is_sampled_with_its_base_and_both_identify_it(learned, sum_tokenizer, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = tmp_path / "base"
    shutil.copytree(learned, base)
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    model.save_pretrained(tmp_path / "adapter")
    adapter = InferenceModel(str(tmp_path / "adapter"), sum_tokenizer)
    request = Request("p", 0, tuple(sum_tokenizer("1 + 2 =")["input_ids"]))
    (generation,) = adapter.sampler(Sampling(num_samples=1, temperature=0, max_new_tokens=4)).sample([request])
    assert generation.tokens
    before = adapter.identity()
    with torch.no_grad():
        changed = AutoModelForCausalLM.from_pretrained(base)
        changed.model.norm.weight.mul_(1.5)
    changed.save_pretrained(base)
    assert InferenceModel(str(tmp_path / "adapter"), sum_tokenizer).identity() != before


def test_the_commit_identifies_a_hub_model(tiny_model, tiny_tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub" / "models--org--student"
    (repository / "refs").mkdir(parents=True)
    identities = []
    for commit in ("a" * 40, "b" * 40):
        tiny_model().save_pretrained(repository / "snapshots" / commit)
        (repository / "refs" / "main").write_text(commit)
        identities.append(InferenceModel("org/student", tiny_tokenizer).identity())
    assert identities[0] != identities[1]


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_pickled_code_is_an_error_and_not_executed(learned, sum_tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(learned, tmp_path / "pickled")
    (tmp_path / "pickled" / "model.safetensors").unlink()
    torch.save({"weight": Malicious()}, tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pickle that contains more than tensors"):
        InferenceModel("pickled", sum_tokenizer).sampler(Sampling())
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"engine": EngineOptions(engine_args={"enforce_eager": True})},
        {"engine": EngineOptions(tensor_parallel_size=2)},
        {"seed_requests": False},
    ],
)
def test_options_of_vllm_raise_with_transformers(learned, sum_tokenizer, options):
    with pytest.raises(ValueError, match=r"options of vLLM, but this model runs with transformers.*--backend vllm"):
        InferenceModel(str(learned), sum_tokenizer, backend="transformers", **options)
