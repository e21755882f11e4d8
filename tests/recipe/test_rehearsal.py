"""A rehearsed step against the profiler's peak of the real one."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from qsft.recipe.rehearsal import Step, backbone, plain_head, rehearse


@pytest.mark.parametrize("checkpointing", [True, False], ids=["checkpointing", "plain"])
@pytest.mark.parametrize(
    ("dtype", "autocast"), [(torch.float32, None), (torch.bfloat16, torch.bfloat16)], ids=["float32", "bf16"]
)
def test_activations_are_within_a_fifth_of_the_profilers_peak(config, checkpointing, dtype, autocast, profiled_peak):
    step = Step(4, 160, dtype, autocast, checkpointing)
    planned = rehearse(config, step)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    hidden = backbone(model, step)  # once unmeasured: buffers that stay are not activations
    assert planned.activations == pytest.approx(profiled_peak(lambda: backbone(model, step)), rel=0.2)
    assert planned.full_logits == pytest.approx(profiled_peak(lambda: plain_head(model, hidden)), rel=0.2)
