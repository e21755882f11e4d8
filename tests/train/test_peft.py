"""LoRA: only adapters change, the head's weight gradient is never computed, the disabled adapter leaves the base."""

import pytest
import torch
from peft import LoraConfig, PeftModel, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from qsft.losses import fused
from qsft.teacher.live import LiveTeacher


@pytest.fixture
def lora():
    return LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


def test_only_adapters_change(trainer, data, tiny_model, lora, monkeypatch):
    grads_of = []
    forward = fused._forward
    monkeypatch.setattr(
        fused, "_forward", lambda h, w, b, spec: grads_of.append(spec.grad_of) or forward(h, w, b, spec)
    )
    made = trainer(
        data.completion(), target="target_sft", teacher=tiny_model(seed=5), peft_config=lora, learning_rate=1e-2
    )
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    made.train()
    changed = {name for name, p in made.model.named_parameters() if not p.equal(before[name])}
    assert changed
    assert all("lora_" in name for name in changed)
    training = [grads for grads in grads_of if any(grads)]
    assert len(training) == 4
    assert set(training) == {(True, False, False)}  # hidden states, not the head's weight


@pytest.mark.parametrize("name", ["sft_kl", "asft", "iw_sft"])
def test_the_disabled_adapter_leaves_the_frozen_base(trainer, data, tiny_model, lora, logged, name):
    off = trainer(data.completion(), target=name, teacher="base", peft_config=lora, learning_rate=1e-2)
    assert isinstance(off.live_teacher.model, PeftModel)
    copy = trainer(data.completion(), target=name, teacher=tiny_model(), peft_config=lora, learning_rate=1e-2)
    off.train()
    copy.train()
    assert logged(off) == pytest.approx(logged(copy), rel=1e-6)
    for mine, other in zip(off.model.parameters(), copy.model.parameters(), strict=True):
        assert mine.equal(other)


def test_the_student_trains_again_after_each_reference(trainer, data, lora):
    made = trainer(data.completion(), target="sft_kl", teacher="base", peft_config=lora)
    batch = made.data_collator(list(made.train_dataset)[:4])
    made.model.train()
    made.compute_loss(made.model, batch).backward()
    assert made.model.training
    assert any(p.grad is not None and p.grad.any() for p in made.model.parameters())


def test_a_peft_model_with_a_trained_head(trainer, data, tiny_model):
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    made = trainer(data.completion(), model=get_peft_model(tiny_model(), config), learning_rate=1e-2)
    name = "base_model.model.lm_head.modules_to_save.default.weight"
    before = dict(made.model.named_parameters())[name].detach().clone()
    made.train()
    assert not dict(made.model.named_parameters())[name].equal(before)


def test_adapters_save_and_load(trainer, data, tiny_model, lora, tmp_path):
    made = trainer(data.completion(), peft_config=lora, learning_rate=1e-2)
    made.train()
    made.save_model(str(tmp_path / "adapter"))
    tiny_model().save_pretrained(tmp_path / "base")
    again = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), tmp_path / "adapter")
    ids = torch.tensor([[30, 31, 32]])
    torch.testing.assert_close(again(ids).logits, made.model.eval()(ids).logits)


def test_lora_with_gradient_checkpointing(trainer, data, lora, logged):
    plain = trainer(data.completion(), peft_config=lora)
    saved = trainer(data.completion(), peft_config=lora, gradient_checkpointing=True)
    plain.train()
    saved.train()
    assert logged(saved) == pytest.approx(logged(plain), rel=1e-5)


@pytest.mark.parametrize("saved", [[], ["lm_head"]], ids=["adapters", "trained_head"])
def test_base_of_a_peft_model_is_cached_as_it_is_in_memory(trainer, data, tiny_model, tmp_path, saved):
    lora = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=saved, task_type="CAUSAL_LM")
    tiny_model().save_pretrained(tmp_path / "student")

    def student():
        model = AutoModelForCausalLM.from_pretrained(tmp_path / "student")
        with torch.no_grad():
            model.lm_head.weight.mul_(2)  # an edit that the directory does not know
        return model

    settings = {"target": "sft_kl", "peft_config": lora, "teacher_cache": str(tmp_path / "cache")}
    made = trainer(data.completion(), model=student(), teacher="base", **settings)
    # The same weights are the same teacher: another run's adapters, and the model without any.
    again = trainer(data.completion(), model=student(), teacher="base", learning_rate=1e-2, **settings)
    trainer(data.completion(), teacher=student(), **settings)
    with pytest.raises(ValueError, match="other weights"):
        trainer(data.completion(), teacher=tiny_model(), **settings)
    assert made.cache.manifest.identity == again.cache.manifest.identity
    live = LiveTeacher(student(), k=made.cache.k)
    for row in list(made.train_dataset)[:4]:
        want = live(**{name: torch.tensor([row[name]]) for name in ("input_ids", "labels")})
        got = made.cache.lookup(row["input_ids"], row["labels"])
        torch.testing.assert_close(got.label_logp.float(), want.label_logp, atol=1e-2, rtol=1e-2)
    again.train()
    assert any(p.requires_grad for p in again.model.parameters())


def test_a_live_base_runs_under_the_students_autocast(trainer, data, lora):
    made = trainer(data.completion(), target="sft_kl", teacher="base", peft_config=lora, bf16=True)
    seen = []
    layer = made.model.get_base_model().model.layers[0]
    layer.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    made._head_inputs(made.data_collator(list(made.train_dataset)[:2]), made.target)
    assert seen[-1]  # the ones before are the self-check, in full precision


def test_an_adapter_on_the_head_raises_an_error(trainer, data):
    config = LoraConfig(r=4, target_modules=["q_proj", "lm_head"], task_type="CAUSAL_LM")
    with pytest.raises(ValueError, match="lm_head"):
        trainer(data.completion(), peft_config=config)


PROMPT_LEARNING = {
    "prompt tuning": PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "prefix tuning": PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"),
    "p-tuning": PromptEncoderConfig(num_virtual_tokens=4, encoder_hidden_size=8, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("kind", PROMPT_LEARNING)
@pytest.mark.parametrize("how", ["cached", "live"])
def test_virtual_tokens_do_not_shift_the_teacher(trainer, data, copycat, logged, tmp_path, kind, how):
    """A teacher that is certain of the labels makes kd equal to sft, unless its log-probs are shifted."""
    settings = {"peft_config": PROMPT_LEARNING[kind], "max_steps": 2, "gradient_checkpointing": False}
    cache = str(tmp_path / "cache") if how == "cached" else None
    distilled = trainer(data.completion(), target="kd", teacher=copycat, teacher_cache=cache, **settings)
    plain = trainer(data.completion(), target="sft", **settings)
    distilled.train()
    plain.train()
    assert logged(distilled) == pytest.approx(logged(plain), rel=1e-5)


def test_psft_scores_its_old_policy_with_virtual_tokens(trainer, data, logged):
    settings = {"peft_config": PROMPT_LEARNING["prompt tuning"], "max_steps": 1}
    clipped = trainer(data.completion(), target="psft", **settings)
    plain = trainer(data.completion(), target="sft", **settings)
    clipped.train()
    plain.train()
    # The ratio is 1 at the start of a block.
    assert logged(clipped) == [-1.0]
    assert logged(clipped, "label_loss") == pytest.approx(logged(plain), rel=1e-5)


@pytest.fixture
def student_in_4_bits(data, config, tiny_tokenizer, tiny_model, lora, tmp_path):
    """Factory: a trainer whose student is loaded in 4 bits and gets an adapter."""
    pytest.importorskip("bitsandbytes")
    from qsft.train.trainer import TargetSFTTrainer

    def make(eval_dataset=None, teacher=None, **settings):
        tiny_model().save_pretrained(tmp_path / "student")
        return TargetSFTTrainer(
            str(tmp_path / "student"),
            config(learning_rate=1e-2, **settings),
            train_dataset=data.completion(),
            eval_dataset=eval_dataset,
            processing_class=tiny_tokenizer,
            peft_config=lora,
            quantization_config=BitsAndBytesConfig(load_in_4bit=True),
            teacher=teacher,
        )

    return make


def test_a_4_bit_student_trains_its_adapter(student_in_4_bits, logged):
    made = student_in_4_bits(target="dft", max_steps=8)
    made.train()
    assert made.model.get_base_model().is_loaded_in_4bit
    assert logged(made, "nll")[-1] < logged(made, "nll")[0]


def test_a_4_bit_student_trains_after_and_between_evaluations(student_in_4_bits, data, logged):
    """bitsandbytes packs the weights in evaluation mode on a CPU with AVX512-BF16, and cannot train afterwards."""
    made = student_in_4_bits(eval_dataset=data.completion(8), eval_strategy="steps", eval_steps=2)
    before = made.evaluate()["eval_loss"]
    made.train()
    plain = student_in_4_bits()
    plain.train()
    assert before == pytest.approx(logged(plain)[0], rel=0.1)
    assert logged(made) == pytest.approx(logged(plain), rel=1e-5)


@pytest.mark.parametrize("case", ["live base", "cached base", "psft"])
def test_a_4_bit_student_is_scored_in_evaluation_mode(student_in_4_bits, data, logged, tmp_path, caplog, case):
    settings = {
        "live base": {"target": "sft_kl"},
        "cached base": {"target": "sft_kl", "teacher": "base", "teacher_cache": str(tmp_path / "cache")},
        "psft": {"target": "psft"},
    }
    made = student_in_4_bits(**settings[case])
    made.train()
    plain = student_in_4_bits(max_steps=1)
    plain.train()
    assert logged(made, "nll")[0] == pytest.approx(logged(plain, "nll")[0], rel=1e-5)
    assert "other weights" not in caplog.text
