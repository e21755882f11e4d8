"""Fingerprints change with what they stand for, and with nothing else."""

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config

from qsft.fingerprints import config_digest, digest_json, model_directory_digest, weight_files, weights_digest


def test_json_digests_ignore_the_order_of_keys():
    assert digest_json({"a": 1, "b": [2]}) == digest_json({"b": [2], "a": 1}) != digest_json({"a": 1, "b": [3]})


def test_one_bit_of_one_parameter_changes_the_digest_of_weights():
    model = torch.nn.Linear(300, 300).bfloat16()
    before = weights_digest(model.named_parameters())
    assert weights_digest(reversed(list(model.named_parameters()))) == before
    model.weight.data.view(torch.int16)[123, 45] ^= 1
    assert weights_digest(model.named_parameters()) != before


@pytest.mark.parametrize("change", [{"rope_theta": 5.0}, {"rms_norm_eps": 1e-3}, {"hidden_act": "gelu"}])
def test_a_configuration_that_computes_something_else_has_another_digest(change):
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 8}
    if "rope_theta" in change:
        change = {"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}
    assert config_digest(Qwen2Config(**small)) != config_digest(Qwen2Config(**small, **change))


def test_where_a_configuration_lies_does_not_matter(tmp_path):
    config = Qwen2Config(hidden_size=16, rms_norm_eps=1e-3)
    config.save_pretrained(tmp_path)
    assert config_digest(Qwen2Config.from_pretrained(tmp_path)) == config_digest(config)


def test_a_directory_is_known_by_weights_and_description(tmp_path):
    save_file({"w": torch.zeros(2_000_000)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    digests = {model_directory_digest(tmp_path)}
    (tmp_path / "config.json").write_text('{"rope_theta": 1}')
    digests.add(model_directory_digest(tmp_path))
    save_file({"w": torch.ones(2_000_000)}, tmp_path / "model.safetensors")
    digests.add(model_directory_digest(tmp_path))
    assert len(digests) == 3
    assert [file["file"] for file in weight_files(tmp_path)] == ["model.safetensors"]
