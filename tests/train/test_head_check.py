"""The self-check finds a head that does not do what the model does."""

import pytest
import torch

from qsft.losses.head import attach_target_head
from qsft.train.head_check import check_head


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_right_head_passes(tiny_model, dtype):
    model = tiny_model(attention_dropout=0.5).to(dtype)
    attach_target_head(model)
    batch = {"input_ids": torch.randint(30, 300, (2, 20))}
    state = torch.get_rng_state()
    check_head(model.train(), batch)
    assert model.training
    assert torch.get_rng_state().equal(state)  # a run with the check is the run without it


def test_a_scale_the_head_does_not_know_is_found(tiny_model):
    model = tiny_model()
    attach_target_head(model)
    model.config.logit_scale = 0.5  # the head believes it, Qwen2's own forward does not
    with pytest.raises(RuntimeError, match=r"the fused head gives .* where the model's own logits give"):
        check_head(model, {"input_ids": torch.randint(30, 300, (1, 9))})


def test_it_runs_before_the_first_step(trainer, data):
    made = trainer(data.tokens())
    made.model.config.logit_scale = 0.5
    with pytest.raises(RuntimeError, match="check_head=False"):
        made.train()
    lenient = trainer(data.tokens(), check_head=False, max_steps=1)
    lenient.model.config.logit_scale = 0.5
    lenient.train()


def test_a_difference_as_large_as_bf16_rounding_is_accepted_under_bf16_autocast_only(trainer, data):
    def train(**settings):
        made = trainer(data.tokens(), max_steps=1, **settings)
        made.model.config.logit_scale = 1.05
        made.train()

    train(bf16=True)
    with pytest.raises(RuntimeError, match="the fused head gives"):
        train()
