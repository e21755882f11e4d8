"""`sft` and `dft` are TRL's own `nll` and `dft`: losses, gradients and final weights."""

import pytest
import torch
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
from trl import SFTTrainer

PAIRS = [("sft", "nll"), ("dft", "dft")]


@pytest.fixture
def trl_trainer(config, tiny_model, tiny_tokenizer):
    """TRL's own trainer with the settings of ours."""

    def make(data, loss_type="nll", **overrides):
        args = config(**overrides)
        args.loss_type = loss_type  # of a TargetSFTConfig, which rejects a second loss beside its target
        return SFTTrainer(tiny_model(), args, train_dataset=data, processing_class=tiny_tokenizer)

    return make


@pytest.mark.parametrize(("target", "loss_type", "form"), [("sft", "nll", "completion"), ("dft", "dft", "text")])
def test_ten_steps(trainer, trl_trainer, data, logged, target, loss_type, form):
    settings = {"max_steps": 10, "gradient_accumulation_steps": 2}
    ours = trainer(getattr(data, form)(), target=target, **settings)
    theirs = trl_trainer(getattr(data, form)(), loss_type=loss_type, **settings)
    ours.train()
    theirs.train()
    assert logged(ours) == pytest.approx(logged(theirs), abs=1e-5)
    assert logged(ours, "num_tokens") == logged(theirs, "num_tokens")
    assert logged(ours, "grad_norm") == pytest.approx(logged(theirs, "grad_norm"), rel=1e-3)
    # TRL averages these over micro-batches, we over tokens.
    assert logged(ours, "entropy") == pytest.approx(logged(theirs, "entropy"), rel=2e-2)
    assert logged(ours, "mean_token_accuracy") == pytest.approx(logged(theirs, "mean_token_accuracy"), abs=5e-2)
    for mine, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("target", "loss_type"), PAIRS)
def test_gradients_of_one_batch(trainer, trl_trainer, data, target, loss_type):
    gradients = []
    for made in (trainer(data.text(), target=target), trl_trainer(data.text(), loss_type=loss_type)):
        batch = made.data_collator([made.train_dataset[i] for i in range(6)])
        made.model.train()
        made.compute_loss(made.model, dict(batch), num_items_in_batch=torch.tensor(50)).backward()
        gradients.append([p.grad for p in made.model.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_evaluation_reports_the_same_loss(trainer, trl_trainer, data):
    ours = trainer(data.text(), eval_dataset=data.text(10))
    theirs = trl_trainer(data.text())
    mine, other = ours.evaluate(), theirs.evaluate(data.text(10))
    for name in ("eval_loss", "eval_entropy", "eval_mean_token_accuracy"):
        assert mine[name] == pytest.approx(other[name], rel=2e-2 if name != "eval_loss" else 1e-5), name


def test_a_mixture_of_experts_keeps_its_balancing_loss(trainer, config, data, logged, tiny_tokenizer):
    def model():
        torch.manual_seed(0)
        sizes = {"hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 2}
        experts = {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 32}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        return Qwen2MoeForCausalLM(
            Qwen2MoeConfig(vocab_size=320, router_aux_loss_coef=0.01, **sizes, **experts, **heads)
        )

    settings = {"gradient_accumulation_steps": 2, "router_aux_loss_coef": 0.01}
    ours = trainer(data.tokens(), model=model(), **settings)
    theirs = SFTTrainer(model(), config(**settings), train_dataset=data.tokens(), processing_class=tiny_tokenizer)
    ours.train()
    theirs.train()
    assert logged(ours) == pytest.approx(logged(theirs), rel=1e-5)
    assert logged(ours, "aux_loss") == pytest.approx(logged(theirs, "aux_loss"), rel=1e-5)


def test_label_tokens_are_counted_the_same_for_a_model_with_a_loss_of_its_own(trainer, tiny_model, data, logged):
    """Trainer counts unshifted labels, or none, for a model whose loss it does not know; the target's head is ours."""

    def train(student):
        made = trainer(data.text(), model=student, gradient_accumulation_steps=2)
        made.train()
        return logged(made)

    student = tiny_model()
    student.loss_type = "ForMaskedLM"
    student.accepts_loss_kwargs = False
    assert train(student) == train(tiny_model())


EVALUATION_PACKED = {"packing": False, "eval_packing": True, "max_length": 32, "per_device_eval_batch_size": 2}


def test_evaluation_data_that_alone_are_packed(trainer, trl_trainer, data, tiny_model, tmp_path):
    """TRL's collator reads a packed example as one document unless the training data are packed too."""
    ours = trainer(data.text(), eval_dataset=data.text(10), **EVALUATION_PACKED)
    theirs = trl_trainer(data.text(), **EVALUATION_PACKED)
    assert ours.evaluate()["eval_loss"] == pytest.approx(theirs.evaluate(data.text(10))["eval_loss"], abs=1e-6)
    settings = {"target": "kd", "teacher": tiny_model(seed=5), "teacher_top_k": 320, **EVALUATION_PACKED}
    live = trainer(data.text(), eval_dataset=data.text(10), **settings)
    cached = trainer(data.text(), eval_dataset=data.text(10), teacher_cache=str(tmp_path / "cache"), **settings)
    assert cached.evaluate()["eval_loss"] == pytest.approx(live.evaluate()["eval_loss"], abs=1e-3)
