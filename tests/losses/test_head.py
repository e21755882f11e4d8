"""Through real models: loss and all parameter gradients equal a full-logits computation."""

import copy
import inspect
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import make_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from qsft import SideInputs, TopK, make_target, target_loss
from qsft.losses import fused, label_tokens, projection
from qsft.losses.head import HeadOptions, attach_target_head, from_bits, label_logps, to_bits

V, B, T, K = 97, 3, 12, 8
SMALL = {
    "vocab_size": V,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"output_router_logits": True, "num_experts_per_tok": 2}
FAMILIES = {
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=False)),
    "qwen2-tied": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL, tie_word_embeddings=True)),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "gemma2-softcap": lambda: Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=5.0)),
    "cohere-scale": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.25)),
    "granite-divisor": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=3.0)),
    "mixtral": lambda: MixtralForCausalLM(MixtralConfig(**SMALL, **MOE, num_local_experts=4)),
    "qwen2-moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **SMALL, **MOE, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
            decoder_sparse_step=1,
        )
    ),
}  # fmt: skip


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(3, V, (B, T), generator=g)
    labels = x.clone()
    labels[:, :4] = -100
    labels[1, 8:] = -100
    full = torch.randn(B, T, V, generator=g).log_softmax(-1)
    logps, ids = full.topk(K)
    label_logp = full.gather(-1, x[..., None])[..., 0]
    return {"input_ids": x, "labels": labels}, {
        "teacher_ids": ids.int(),
        "teacher_logps": to_bits(logps.half()),
        "teacher_label_logp": to_bits(label_logp.half()),
        "document": torch.arange(B)[:, None].expand(B, T),
    }


def full_logits_loss(model, data, extra, target):
    """The slow way: all logits, shifted here on its own."""
    logits = model(input_ids=data["input_ids"]).logits[:, :-1]
    labels = data["labels"][:, 1:]
    keep = labels != -100
    teacher = TopK(
        extra["teacher_ids"][:, 1:][keep].long(),
        from_bits(extra["teacher_logps"])[:, 1:][keep].to(logits.dtype),
        from_bits(extra["teacher_label_logp"])[:, 1:][keep].to(logits.dtype),
    )
    side = SideInputs(document=extra["document"][:, 1:][keep])
    return target_loss(logits[keep], labels[keep], target, teacher, side=side)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", ["target_sft", "sft", "iw_sft"])
def test_equals_full_logits(family, name, batch):
    torch.manual_seed(0)
    model = FAMILIES[family]()
    exact = "mixtral" not in family and "moe" not in family  # grouped matmuls exist in float32 only
    model = model.double() if exact else model
    data, extra = batch
    target = make_target(name)
    want = full_logits_loss(model, data, extra, target)
    expected = gradients(model, want)
    attach_target_head(model)
    out = model(**data, **extra, target=target)
    got = gradients(model, out.loss)
    tolerance = 1e-10 if exact else 2e-5
    torch.testing.assert_close(out.loss.double(), want.double(), rtol=tolerance, atol=tolerance)
    assert got.keys() == expected.keys()
    for key in got:
        torch.testing.assert_close(got[key], expected[key], rtol=0, atol=tolerance)
    if not exact:
        torch.testing.assert_close(out.aux_loss, model(**data).aux_loss)


def test_forward_and_generate_are_untouched(batch):
    data, _ = batch
    model = FAMILIES["qwen2"]()
    before = model(**data)
    generated = model.generate(data["input_ids"], max_new_tokens=3, do_sample=False)
    signature = inspect.signature(model.forward)
    attach_target_head(model)
    after = model(**data)
    torch.testing.assert_close(before.logits, after.logits)
    torch.testing.assert_close(before.loss, after.loss)
    assert torch.equal(generated, model.generate(data["input_ids"], max_new_tokens=3, do_sample=False))
    assert list(inspect.signature(model.forward).parameters)[:3] == list(signature.parameters)[:3]


def test_attaching_twice_changes_nothing(batch):
    model = FAMILIES["qwen2"]()
    attach_target_head(model)
    forward = model.forward
    attach_target_head(model)
    assert model.forward is forward or model.forward.__func__ is forward.__func__


def test_no_labels_give_a_connected_zero(batch):
    data, extra = batch
    model = FAMILIES["qwen2-tied"]()
    attach_target_head(model)
    data["labels"] = torch.full_like(data["labels"], -100)
    out = model(**data, **extra, target=make_target("target_sft"))
    grads = gradients(model, out.loss)
    assert out.loss.item() == 0
    assert grads
    assert all(g.abs().max() == 0 for g in grads.values())


def test_only_label_positions_reach_the_head(batch, monkeypatch):
    from qsft.losses import head

    data, extra = batch
    model = FAMILIES["qwen2"]()
    attach_target_head(model)
    seen = []
    original = head.fused_target_loss
    monkeypatch.setattr(
        head, "fused_target_loss", lambda hidden, *a, **k: seen.append(len(hidden)) or original(hidden, *a, **k)
    )
    model(**data, **extra, target=make_target("target_sft"))
    assert seen == [(data["labels"][:, 1:] != -100).sum()]


@pytest.mark.parametrize(("family", "has_router"), [("qwen2", False), ("mixtral", True)])
def test_only_a_mixture_of_experts_returns_router_logits(family, has_router, batch):
    data, _ = batch
    model, calls = FAMILIES[family](), []
    attach_target_head(model)
    model.model.register_forward_pre_hook(lambda module, args, kwargs: calls.append(kwargs), with_kwargs=True)
    model(**data, target=make_target("sft"))
    assert [bool(kwargs.get("output_router_logits")) for kwargs in calls] == [has_router]


def test_lora_trains_adapters_only_and_never_the_head(batch):
    data, extra = batch
    model = get_peft_model(FAMILIES["qwen2"](), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    attach_target_head(model)
    out = model(**data, **extra, target=make_target("target_sft"))
    grads = gradients(model, out.loss)
    assert grads
    assert all("lora" in name for name in grads)
    with model.disable_adapter():
        off = label_logps(model, **data)
    plain = FAMILIES["qwen2"]()
    plain.load_state_dict(
        {k.replace(".base_layer", ""): v for k, v in model.get_base_model().state_dict().items() if "lora" not in k}
    )
    torch.testing.assert_close(off, label_logps(plain, **data))


def test_modules_to_save_on_the_head_trains_the_copy(batch):
    data, extra = batch
    model = get_peft_model(
        FAMILIES["qwen2"](),
        LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM"),
    )
    attach_target_head(model)
    grads = gradients(model, model(**data, **extra, target=make_target("target_sft")).loss)
    assert any("modules_to_save" in name for name in grads)


def test_an_adapter_on_the_head_raises_an_error():
    model = get_peft_model(FAMILIES["qwen2"](), LoraConfig(r=2, target_modules=["lm_head"], task_type="CAUSAL_LM"))
    with pytest.raises(ValueError, match="modules_to_save"):
        attach_target_head(model)


def test_missing_labels_are_named(batch):
    data, _ = batch
    model = FAMILIES["qwen2"]()
    attach_target_head(model)
    with pytest.raises(ValueError, match="needs `labels`"):
        model(input_ids=data["input_ids"], target=make_target("sft"))


def test_label_logps_are_aligned_with_labels(batch):
    data, _ = batch
    model = make_model(vocab_size=V)
    got = label_logps(model, **data)
    assert got.shape == (B, T)
    logp = model(input_ids=data["input_ids"]).logits.log_softmax(-1)
    for b in range(B):
        for t in range(T):
            label = data["labels"][b, t]
            want = 0.0 if label == -100 or t == 0 else logp[b, t - 1, label].item()
            assert got[b, t].item() == pytest.approx(want, abs=1e-5)


def test_bits_round_trip():
    for dtype in (torch.float16, torch.float32):
        values = torch.tensor([0.0, -1.5, float("-inf"), 1e-4], dtype=dtype)
        assert not to_bits(values).is_floating_point()
        assert torch.equal(from_bits(to_bits(values)), values)
    assert torch.equal(from_bits(torch.tensor([1.0])), torch.tensor([1.0]))


def test_the_output_layers_hooks_fire_and_its_forward_comes_back(batch):
    """ZeRO-3 gathers the weight in such hooks."""
    data, _ = batch
    model = FAMILIES["qwen2"]()
    calls = []
    model.lm_head.register_forward_pre_hook(lambda layer, args: calls.append("before"))
    model.lm_head.register_forward_hook(lambda layer, args, output: calls.append("after"))
    model.lm_head.register_full_backward_pre_hook(lambda layer, gradient: calls.append("backward"))
    attach_target_head(model)
    model(**data, target=make_target("sft")).loss.backward()
    assert calls == ["before", "after", "backward"]
    assert "forward" not in vars(model.lm_head)
    with pytest.raises(ValueError, match="outside the head"):
        model(input_ids=data["input_ids"], labels=data["labels"] + V, target=make_target("sft"))
    assert "forward" not in vars(model.lm_head)


COMPILED = """
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from qsft import make_target
from qsft.losses.head import attach_target_head

def run(target, **teacher):  # with a model of its own, as a second trainer in the process has
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
                                         num_attention_heads=4, num_key_value_heads=2))
    attach_target_head(model)
    batch = dict(input_ids=x, labels=x, target=make_target(target), **teacher)
    want = model(**batch).loss
    torch.testing.assert_close(torch.compile(model, backend="eager")(**batch).loss, want)

x = torch.randint(97, (2, 8))
run("sft")
# The call before had no teacher.
run("kd", teacher_ids=x[..., None].repeat(1, 1, 3), teacher_logps=torch.zeros(2, 8, 3) - 2)
run("dft")
"""


@pytest.mark.slow
def test_torch_compile_leaves_the_head_out_of_the_graph_and_the_next_run_has_its_own_inputs():
    """In a process of its own: the tests' run-time type checks cannot be traced."""
    run = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr


def test_a_deep_copy_runs_its_own_weights(batch):
    """EMA and SWA callbacks copy the model; its forward was the original's."""
    data, _ = batch
    model = FAMILIES["qwen2"]()
    attach_target_head(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(2.0)
    fresh = FAMILIES["qwen2"]()
    fresh.load_state_dict(twin.state_dict())
    torch.testing.assert_close(twin(**data).logits, fresh(**data).logits)
    attach_target_head(fresh)
    sft = make_target("sft")
    torch.testing.assert_close(twin(**data, target=sft).loss, fresh(**data, target=sft).loss)
    assert not torch.allclose(twin(**data, target=sft).loss, model(**data, target=sft).loss)


def test_the_head_kernel_reaches_the_loss_and_attaching_again_keeps_it(batch):
    data, _ = batch
    model = FAMILIES["qwen2"]()
    attach_target_head(model, HeadOptions(kernel="cuda"))
    attach_target_head(model)
    with pytest.raises(ValueError, match="head_kernel = 'cuda'"):
        model(**data, target=make_target("sft"))
    attach_target_head(model, HeadOptions(kernel="torch"))
    assert torch.isfinite(model(**data, target=make_target("sft")).loss)


@pytest.mark.parametrize("call", [{"target": make_target("sft")}, {"label_logps": True}], ids=["loss", "log-probs"])
def test_the_tile_of_the_options_is_the_one_that_is_projected(call, batch, monkeypatch):
    """Three tokens of 61 float32 logits fit the tile: five label tokens are two chunks."""
    data, _ = batch
    model = FAMILIES["qwen2"]()
    attach_target_head(model)
    expected = model(**data, **call)
    chunks = []
    write = projection.write_product

    def recorded(a, b, out):
        chunks.append(tuple(out.shape))
        return write(a, b, out)

    monkeypatch.setattr(fused, "write_product", recorded)
    monkeypatch.setattr(label_tokens, "write_product", recorded)
    entries = model.config.vocab_size
    attach_target_head(model, HeadOptions(tile_mib=3 * entries * 4 / 2**20))
    tiled = model(**data, **call)
    assert max(rows for rows, columns in chunks if columns == entries) <= 3
    assert len([rows for rows, columns in chunks if columns == entries]) > 1
    got, want = (out if isinstance(out, torch.Tensor) else out.loss for out in (tiled, expected))
    torch.testing.assert_close(got, want)


def test_a_stored_tail_and_a_count_of_labels_pass_through_the_model(batch):
    data, extra = batch
    model = FAMILIES["qwen2"]()
    attach_target_head(model)
    target = make_target("kd", tail="ghost")
    rows = {name: extra[name] for name in ("teacher_ids", "teacher_logps")}
    tail = to_bits(torch.full((B, T), -3.0).half())
    count = int((data["labels"][:, 1:] != -100).sum())
    plain, stored = (
        model(**data, **rows, target=target).loss,
        model(**data, **rows, teacher_log_tail=tail, target=target),
    )
    counted = model(**data, **rows, teacher_log_tail=tail, target=target, label_count=count)
    assert abs(plain.item() - stored.loss.item()) > 1e-3
    assert counted.loss.item() == stored.loss.item()
