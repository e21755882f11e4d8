"""NaN and infinity: the errors, and that they never reach a checkpoint."""

import pytest
import torch
from transformers import TrainerCallback

from qsft.run_directory import checkpoint_paths


class PoisonWeights(TrainerCallback):
    """Puts NaN into the student's weights after a step."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == self.step:
            with torch.no_grad():
                model.get_input_embeddings().weight.fill_(float("nan"))


@pytest.mark.parametrize("saving", [{"save_strategy": "no"}, {"save_strategy": "steps", "save_steps": 1}])
def test_a_loss_that_becomes_nan_stops_the_run_before_a_checkpoint(trainer, data, saving):
    made = trainer(data.tokens(), max_steps=8, logging_steps=3, callbacks=[PoisonWeights(2)], **saving)
    with pytest.raises(FloatingPointError, match=r"NaN or infinite.*up to step 3.*the student's log-probs"):
        made.train()
    # The checkpoint of step 2 has the poisoned weights, whose loss nobody has computed yet; none follows it.
    assert {path.name for path in checkpoint_paths(made.args.output_dir)} <= {"checkpoint-1", "checkpoint-2"}


def test_training_goes_on_as_trainers_does_on_request(trainer, data):
    made = trainer(data.tokens(), max_steps=4, callbacks=[PoisonWeights(2)], stop_on_nonfinite_loss=False)
    made.train()
    assert made.state.global_step == 4


def test_nan_in_the_initial_weights_is_named(trainer, data, tiny_model):
    student = tiny_model()
    with torch.no_grad():
        student.lm_head.weight[3] = float("nan")
    with pytest.raises(ValueError, match=r"logits of Qwen2ForCausalLM are NaN or infinite.*before any training"):
        trainer(data.tokens(), model=student).train()


@pytest.mark.parametrize("target", ["target_sft", "kd"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_live_teacher_that_returns_nan_is_named(trainer, data, tiny_model, target, value):
    teacher = tiny_model(seed=5)
    made = trainer(data.tokens(), target=target, teacher=teacher, teacher_live=True, max_steps=3)
    with torch.no_grad():
        teacher.lm_head.weight[3] = value
    with pytest.raises(ValueError, match="the teacher Qwen2ForCausalLM returned NaN or infinity"):
        made.train()
