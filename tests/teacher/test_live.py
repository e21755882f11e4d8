import pytest
import torch
from peft import LoraConfig, get_peft_model

from qsft.targets.view import TopK
from qsft.teacher.documents import Documents, label_positions
from qsft.teacher.live import LiveTeacher

VOCABULARY = 320  # entries of the tiny models' heads


@pytest.fixture
def batch(documents):
    data = [d for d in documents(12) if len(label_positions(d["labels"]))]
    width = max(len(d["input_ids"]) for d in data)

    def pad(name, value):
        return torch.tensor([d[name] + [value] * (width - len(d[name])) for d in data])

    mask = torch.tensor([[1] * len(d["input_ids"]) + [0] * (width - len(d["input_ids"])) for d in data])
    return {"input_ids": pad("input_ids", 0), "labels": pad("labels", -100), "attention_mask": mask}


def reference(model, batch):
    """Full logits, shifted by hand."""
    with torch.no_grad():
        logps = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits.log_softmax(-1)
    keep = batch["labels"][:, 1:] != -100
    return logps[:, :-1][keep], batch["labels"][:, 1:][keep]


def every_log_prob(model, batch, **options):
    """A live teacher's log-probs of every token, by token id."""
    found = LiveTeacher(model, k=VOCABULARY, **options)(**batch)
    return torch.empty_like(found.logps).scatter(-1, found.ids.long(), found.logps)


def test_log_probs_are_the_models_own(tiny_model, batch):
    model = tiny_model().eval()
    expected, labels = reference(model, batch)
    torch.testing.assert_close(every_log_prob(model, batch), expected)
    top = LiveTeacher(model, k=8)(**batch)
    assert isinstance(top, TopK)
    torch.testing.assert_close(top.logps, expected.topk(8).values)
    torch.testing.assert_close(expected.gather(1, top.ids.long()), top.logps)
    torch.testing.assert_close(top.label_logp, expected.gather(1, labels[:, None])[:, 0])
    assert not top.logps.requires_grad


def test_more_than_the_vocabulary_is_the_vocabulary(tiny_model, batch):
    log_probs = LiveTeacher(tiny_model().eval(), k=1000)(**batch)
    assert log_probs.ids.shape[-1] == 320
    torch.testing.assert_close(log_probs.logps.exp().sum(dim=-1), torch.ones(len(log_probs.logps)))


def test_it_agrees_with_a_cache(tiny_model, batch, documents, build):
    data = [d for d in documents(12) if len(label_positions(d["labels"]))]
    cache = build(data)
    live = LiveTeacher(tiny_model().eval(), k=8)(**batch)
    cached = torch.cat([cache.lookup(**d).logps for d in data])
    torch.testing.assert_close(live.logps, cached.float(), atol=3e-3, rtol=1e-3)


def test_a_peft_student_is_its_own_teacher_with_the_adapter_off(tiny_model, batch):
    base = tiny_model().eval()
    expected, _ = reference(base, batch)
    student = get_peft_model(tiny_model(attention_dropout=0.5), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in student.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    student.train()
    moved, _ = reference(student.eval(), batch)
    student.train()
    torch.testing.assert_close(every_log_prob(student, batch, is_student=True), expected)
    torch.testing.assert_close(every_log_prob(student, batch), moved)  # somebody's teacher that has an adapter
    assert (moved - expected).abs().max() > 0.01
    assert student.training
    assert all(not layer.disable_adapters for name, layer in student.named_modules() if hasattr(layer, "lora_A"))


def test_a_batch_without_labels_gives_no_log_probs(tiny_model, batch):
    batch["labels"] = torch.full_like(batch["labels"], -100)
    assert LiveTeacher(tiny_model(), k=8)(**batch).ids.shape == (0, 8)


def test_packed_documents_with_positions_do_not_see_each_other(tiny_model, documents):
    data = [d for d in documents(4) if len(label_positions(d["labels"]))][:2]
    model = tiny_model(attn_implementation="sdpa").eval()
    row = {name: torch.tensor([[token for d in data for token in d[name]]]) for name in ("input_ids", "labels")}
    row["labels"][0, len(data[0]["input_ids"])] = -100  # the collator masks what nothing predicts
    row["position_ids"] = torch.cat([torch.arange(len(d["input_ids"])) for d in data])[None]
    alone = [every_log_prob(model, {name: torch.tensor([d[name]]) for name in ("input_ids", "labels")}) for d in data]
    torch.testing.assert_close(every_log_prob(model, row), torch.cat(alone), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["gemma2", "granite", "cohere"])
def test_soft_caps_and_scales_of_the_head_are_applied(family, batch):
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(family, vocab_size=320, num_key_value_heads=2, head_dim=8, pad_token_id=0, **small)
    if family == "gemma2":
        config.final_logit_softcapping = 0.5
    if family == "granite":
        config.logits_scaling = 8.0
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    expected, _ = reference(model, batch)
    torch.testing.assert_close(every_log_prob(model, batch), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("k", [VOCABULARY, 8])
def test_log_probs_that_are_not_finite_raise_at_the_next_check(tiny_model, batch, value, k):
    teacher = LiveTeacher(tiny_model().eval(), k=k)
    teacher(**batch)
    teacher.raise_if_invalid()
    with torch.no_grad():
        teacher.model.model.embed_tokens.weight[batch["input_ids"][3, 0]] = value
    teacher(**batch)
    with pytest.raises(ValueError, match="live teacher Qwen2ForCausalLM returned NaN or infinite log-probs"):
        teacher.raise_if_invalid()
    teacher.raise_if_invalid()  # reported once


def test_weights_that_are_nan_are_named_at_the_first_batch(tiny_model, batch):
    model = tiny_model().eval()
    with torch.no_grad():
        model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="returned NaN or infinity for the first tokens"):
        LiveTeacher(model, k=8)(**batch)


def test_a_pad_token_the_teacher_does_not_know_is_padding(tiny_model, batch):
    teacher = LiveTeacher(tiny_model().eval(), k=8)
    expected = teacher(**batch)
    padded = batch | {"input_ids": torch.where(batch["attention_mask"] == 0, 320, batch["input_ids"])}
    assert torch.equal(teacher(**padded).logps, expected.logps)
    teacher.raise_if_invalid()


def test_a_pad_token_of_a_padding_free_batch_is_padding_too(tiny_model):
    model = tiny_model(attn_implementation="sdpa").eval()
    teacher = LiveTeacher(model, k=8)
    ids = torch.tensor([[5, 6, 7, 8, 9, 320, 320]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 0]])
    labels = torch.tensor([[-100, 6, 7, -100, 9, -100, -100]])
    assert teacher(input_ids=ids, labels=labels, position_ids=positions).logps.isfinite().all()
    teacher.raise_if_invalid()


@pytest.mark.parametrize("name", ["input_ids", "labels"])
def test_a_token_the_teacher_does_not_know_raises_at_the_next_check(tiny_model, batch, name):
    teacher = LiveTeacher(tiny_model().eval(), k=8)
    batch[name][0, 1] = 321
    teacher(**batch)
    with pytest.raises(ValueError, match=r"token id 321, but the live teacher .* has 320 token embeddings"):
        teacher.raise_if_invalid()


def test_unknown_tokens_of_a_data_set_are_named_before_the_first_batch(tiny_model, documents):
    teacher = LiveTeacher(tiny_model(), k=8)
    teacher.check_documents(Documents(documents(5)))
    with pytest.raises(ValueError, match=r"token id 320.*320 entries"):
        teacher.check_documents(Documents([*documents(5), {"input_ids": [5, 320], "labels": [-100, 5]}]))
    with pytest.raises(ValueError, match=r"uses the token id 31., which was added"):
        LiveTeacher(tiny_model(), k=8, shared_ids=310).check_documents(Documents(documents(50)))
