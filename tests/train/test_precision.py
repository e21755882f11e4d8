"""Float32 weights and the loss are not rounded to bf16 by FSDP2 or DeepSpeed; tests/distributed trains with both."""

from types import SimpleNamespace

import pytest
import torch
from tiny import make_model

from qsft.train import precision


@pytest.mark.parametrize(
    ("given", "reduces"),
    [
        (None, torch.float32),  # accelerate's own: one dtype for all three
        ({"param_dtype": torch.bfloat16, "reduce_dtype": torch.bfloat16}, torch.bfloat16),
        ({"param_dtype": torch.bfloat16, "reduce_dtype": torch.float16}, torch.float16),
        ({"param_dtype": torch.bfloat16, "output_dtype": torch.bfloat16}, None),  # as the parameters: a choice too
    ],
    ids=["none", "as parameters", "other", "left out"],
)
def test_the_users_reduce_dtype_is_respected(given, reduces, monkeypatch):
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import MixedPrecisionPolicy

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    if given is None:
        plugin.set_mixed_precision("bf16")
    else:
        plugin.mixed_precision_policy = MixedPrecisionPolicy(**given)
    messages = []
    monkeypatch.setattr(precision.logger, "info", messages.append)
    precision.keep_loss_in_float32(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    policy = plugin.mixed_precision_policy
    assert (policy.param_dtype, policy.reduce_dtype, policy.output_dtype) == (torch.bfloat16, reduces, None)
    assert messages == [f"FSDP2 returns the loss in float32 and reduces gradients in {reduces or torch.bfloat16}."]


def test_other_plugins_are_left_alone():
    from accelerate.utils import FullyShardedDataParallelPlugin

    first = FullyShardedDataParallelPlugin(fsdp_version=1)
    first.set_mixed_precision("bf16")
    before = first.mixed_precision_policy
    for plugin in (None, first, FullyShardedDataParallelPlugin(fsdp_version=2)):  # the last in full precision
        precision.keep_loss_in_float32(SimpleNamespace(state=SimpleNamespace(fsdp_plugin=plugin)))
    assert first.mixed_precision_policy == before


@pytest.fixture
def deepspeed_args(monkeypatch, tmp_path):
    """deepspeed_args(file=None, **settings): what keep_weights_in_float32 reads, with accelerate's real plugin."""
    pytest.importorskip("deepspeed")
    from accelerate.utils import DeepSpeedPlugin

    monkeypatch.setattr(precision.logger, "warning", lambda message: warnings.append(message))
    warnings = []

    def make(file=None, **settings):
        if file is not None:
            monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
        plugin = DeepSpeedPlugin(zero_stage=2)
        plugin.set_mixed_precision("bf16")
        defaults = {"bf16": True, "model_init_kwargs": None, "deepspeed": None}
        return SimpleNamespace(deepspeed_plugin=plugin, warnings=warnings, **{**defaults, **settings})

    yield make
    from transformers.integrations import deepspeed

    deepspeed.unset_hf_deepspeed_config()


def rounds_weights(args):
    from transformers.integrations.deepspeed import deepspeed_config

    config = args.deepspeed_plugin.deepspeed_config
    if config.get("torch_autocast", {}).get("enabled"):
        assert deepspeed_config()["torch_autocast"]["enabled"]  # what from_pretrained reads
        assert not deepspeed_config()["bf16"]
        return False
    return config["bf16"]["enabled"]


@pytest.mark.parametrize("model", ["name", make_model()], ids=["by name", "in memory"])
def test_float32_weights_are_not_rounded_by_deepspeed(deepspeed_args, model):
    args = deepspeed_args()
    assert rounds_weights(args)
    precision.keep_weights_in_float32(args, model)
    assert not rounds_weights(args)
    args.deepspeed_plugin.set_mixed_precision("bf16")  # again, as accelerate does later
    assert not rounds_weights(args)


@pytest.mark.parametrize(
    ("model", "settings"),
    [("name", {"model_init_kwargs": {"dtype": "bfloat16"}}), (make_model().bfloat16(), {})],
    ids=["by name", "in memory"],
)
def test_weights_in_bf16_are_trained_as_deepspeed_does_it(deepspeed_args, model, settings):
    args = deepspeed_args(**settings)
    precision.keep_weights_in_float32(args, model)
    assert rounds_weights(args)


def test_a_deepspeed_file_of_the_users_own_is_kept_with_a_warning(deepspeed_args, tmp_path):
    file = tmp_path / "deepspeed.json"
    file.write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}')
    args = deepspeed_args(file)
    precision.keep_weights_in_float32(args, "name")
    assert rounds_weights(args)
    [warning] = args.warnings
    assert "torch_autocast" in warning


def test_the_section_that_the_warning_names_keeps_float32_weights(deepspeed_args, tmp_path):
    file = tmp_path / "deepspeed.json"
    file.write_text(
        '{"zero_optimization": {"stage": 2}, "bf16": {}, "torch_autocast": {"enabled": true, "dtype": "bfloat16"}}'
    )
    args = deepspeed_args(file)
    precision.keep_weights_in_float32(args, "name")
    assert not args.warnings
    assert "enabled" not in args.deepspeed_plugin.deepspeed_config["bf16"]
