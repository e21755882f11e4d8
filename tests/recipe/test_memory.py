"""The plan's bytes against the bytes of real tensors, the head's tile and a rehearsed step against the profiler."""

import warnings

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from qsft import TopK, fused_target_loss, make_target
from qsft.losses import projection
from qsft.recipe.memory import (
    STRATEGIES,
    Memory,
    StepShape,
    ddp,
    fsdp2,
    head_bytes,
    run_backbone,
    run_plain_head,
    trace_step,
    zero2,
    zero3,
)

QWEN = Qwen2Config(
    vocab_size=2000,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=2,
)
LLAMA = LlamaConfig(
    vocab_size=1003,  # a number that no GPU count divides
    hidden_size=96,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    tie_word_embeddings=True,
)


@pytest.fixture(params=[QWEN, LLAMA], ids=["qwen", "llama"])
def config(request):
    """Two small architectures: grouped attention with biases, and a tied head of an odd size."""
    return request.param


def nbytes(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def adamw_state_bytes(optimizer):
    return nbytes(value for state in optimizer.state.values() for value in state.values())


def one_step(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    model(input_ids=torch.zeros(1, 4, dtype=torch.long), labels=torch.zeros(1, 4, dtype=torch.long)).loss.backward()
    optimizer.step()
    return optimizer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_weights_gradients_optimizer_are_the_tensors_bytes(config, dtype):
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    optimizer = one_step(model)
    planned = ddp(trace_step(config, StepShape(1, 8, dtype)), 1, None)
    assert planned.weights == nbytes(model.parameters())
    assert planned.gradients == nbytes(p.grad for p in model.parameters())
    assert planned.optimizer == adamw_state_bytes(optimizer)
    assert planned.exchange == 0


def test_lora_trains_its_adapters_only(config):
    from peft import LoraConfig, get_peft_model

    adapter = LoraConfig(r=4, task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"])
    model = get_peft_model(AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16), adapter)
    optimizer = one_step(model)
    planned = ddp(trace_step(config, StepShape(1, 8, torch.bfloat16), adapter), 1, torch.bfloat16)
    assert planned.weights == nbytes(model.parameters())
    assert planned.gradients == nbytes(p.grad for p in model.parameters() if p.grad is not None)
    assert planned.optimizer == adamw_state_bytes(optimizer)


@pytest.fixture(params=[1, 4])
def fake_group(request):
    """A process group in which this process is rank 0 and nobody answers: sharding needs no more."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=request.param)
    yield request.param
    torch.distributed.destroy_process_group()


def test_fsdp2_shards_are_the_tensors_bytes(config, fake_group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)  # accelerate makes the shards float32
    mesh = init_device_mesh("cpu", (fake_group,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = one_step(model)
    local = [p.to_local() for p in model.parameters()]
    planned = fsdp2(trace_step(config, StepShape(1, 8, torch.bfloat16)), fake_group, torch.bfloat16)
    assert planned.weights == nbytes(local)
    assert planned.gradients == nbytes(p.grad.to_local() for p in model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values()]
    assert planned.optimizer == nbytes(s.to_local() if hasattr(s, "to_local") else s for s in states)


def test_deepspeed_shares_follow_its_partitioning_and_more_gpus_never_cost_more(config):
    model = trace_step(config, StepShape(1, 8, torch.bfloat16))
    numbers = [p.numel() for p in model.parameters]
    for gpus in (1, 2, 8, 512):
        shares = sum(-(-n // gpus) for n in numbers)
        assert zero3(model, gpus, torch.bfloat16).weights == 2 * shares
        assert zero3(model, gpus, torch.bfloat16).optimizer == 12 * shares  # float32 master weights and two moments
        assert zero2(model, gpus, torch.bfloat16).weights == 2 * sum(numbers)
        assert zero2(model, gpus, torch.bfloat16).gradients == 2 * -(-sum(numbers) // gpus)
    float32 = trace_step(config, StepShape(1, 8, torch.float32, torch.bfloat16))
    for mixed in (None, torch.bfloat16):  # float32 weights stay float32 under autocast
        assert zero3(float32, 1, mixed).weights == 4 * sum(numbers)
        assert zero3(float32, 1, mixed).optimizer == 8 * sum(numbers)  # the weights are the master weights
        assert zero2(float32, 1, mixed).weights == 4 * sum(numbers)
        assert zero2(float32, 1, mixed).optimizer == 12 * sum(numbers)
    for name in ("FSDP2", "ZeRO-3"):
        sharded = [STRATEGIES[name](model, gpus, torch.bfloat16) for gpus in (2, 8, 64, 512)]
        parts = [m.weights + m.gradients + m.optimizer for m in sharded]
        assert parts == sorted(parts, reverse=True)


@pytest.mark.parametrize(
    ("vocab", "width", "tokens", "k", "tile_mib", "block"),
    [(4000, 128, 700, 16, 2, 2**26), (9000, 64, 300, 8, 256, 2**20), (9000, 64, 300, 8, None, 2**20)],
)
@pytest.mark.parametrize("trainable", [True, False])
def test_the_head_tile_is_within_a_fifth_of_the_profilers_peak(
    vocab, width, tokens, k, tile_mib, block, trainable, monkeypatch, profiled_peak
):
    from qsft.losses import fused, projection
    from qsft.targets.registry import make_target
    from qsft.targets.view import TopK

    monkeypatch.setattr(projection, "CPU_BLOCK_BYTES", block)
    hidden = torch.randn(tokens, width, requires_grad=True)
    weight = torch.randn(vocab, width, requires_grad=trainable)
    labels = torch.randint(0, vocab, (tokens,))
    logps, ids = torch.randn(tokens, vocab).log_softmax(-1).topk(k)

    def run():
        teacher = TopK(ids.int().long(), logps.half())
        fused.fused_target_loss(
            hidden, weight, labels, make_target("target_sft"), teacher, tile_mib=tile_mib
        ).loss.backward()

    how = {"trained": trainable, "top_k": k, "compute": torch.float32, "device": "cpu", "tile_mib": tile_mib}
    planned = head_bytes(tokens, width, vocab, **how)
    assert planned == pytest.approx(profiled_peak(run), rel=0.2)


def test_totals_are_the_sum_of_the_parts():
    assert Memory(1, 2, 4, 8, 16, 32).total == 63


@pytest.mark.parametrize("checkpointing", [True, False], ids=["checkpointing", "plain"])
@pytest.mark.parametrize(
    ("config", "dtype", "autocast"),
    [
        (QWEN, torch.float32, None),
        (LLAMA, torch.float32, None),
        (LLAMA, torch.bfloat16, torch.bfloat16),
        # A CPU multiplies bf16 slowly: the smaller model proves the same
        pytest.param(QWEN, torch.bfloat16, torch.bfloat16, marks=pytest.mark.slow),
    ],
    ids=["qwen-float32", "llama-float32", "llama-bf16", "qwen-bf16"],
)
def test_activations_are_within_a_fifth_of_the_profilers_peak(config, checkpointing, dtype, autocast, profiled_peak):
    step = StepShape(4, 160, dtype, autocast, checkpointing)
    planned = trace_step(config, step)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    hidden = run_backbone(model, step)  # once unmeasured: buffers that stay are not activations
    assert planned.activations == pytest.approx(profiled_peak(lambda: run_backbone(model, step)), rel=0.2)
    assert planned.full_logits == pytest.approx(profiled_peak(lambda: run_plain_head(model, hidden)), rel=0.2)


@pytest.mark.parametrize("adapter", [None, LoraConfig(r=2, target_modules=["q_proj"])], ids=["full", "lora"])
def test_the_estimate_shows_no_warning(adapter):
    """transformers 5.23 renamed gradient checkpointing and warns of the old name."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        trace_step(LLAMA, StepShape(1, 8, torch.float32, checkpointing=True), adapter)


@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=["bf16", "autocast"])
@pytest.mark.parametrize("chunk", [64, 128], ids=["two chunks", "one chunk"])
def test_the_head_in_bf16_on_a_cpu_is_within_a_fifth_of_the_profilers_peak(
    chunk, weight_dtype, profiled_peak, product_scratch, monkeypatch
):
    tokens, hidden, vocabulary = 128, 64, 8000
    tile_mib = chunk * vocabulary * 2 / 2**20
    monkeypatch.setattr(projection, "CPU_BLOCK_BYTES", 8 * vocabulary * 4)
    h = torch.randn(tokens, hidden).bfloat16().requires_grad_()
    w = torch.randn(vocabulary, hidden).to(weight_dtype).requires_grad_()
    labels = torch.randint(vocabulary, (tokens,))
    teacher = TopK(torch.randint(vocabulary, (tokens, 4)), torch.randn(tokens, 4).log_softmax(-1))

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            loss = fused_target_loss(h, w, labels, make_target("target_sft"), teacher, tile_mib=tile_mib).loss
        loss.backward()

    planned = head_bytes(
        tokens, hidden, vocabulary, top_k=4, device="cpu", weight_dtype=weight_dtype, tile_mib=tile_mib
    )
    # In the forward of the first chunk, when the gradients exist already, the product of the logits is computed.
    scratch = product_scratch(h.detach()[:chunk], w.detach().bfloat16().t())
    assert planned == pytest.approx(profiled_peak(run) - scratch, rel=0.2)


def test_a_smaller_tile_needs_less_memory_in_the_estimate():
    sizes = [head_bytes(16_384, 1536, 151_936, compute=torch.float32, tile_mib=mib) for mib in (64, 512, None)]
    assert sizes == sorted(sizes)
    assert sizes[1] - sizes[0] > 400 * 2**20


def test_with_kernels_the_head_holds_a_tile_and_two_gradients():
    tokens, hidden, vocabulary = 8192, 4096, 151_936
    held = 4 * (4096 * vocabulary + vocabulary * hidden + tokens * hidden)
    assert head_bytes(tokens, hidden, vocabulary, kernels=True) == held
    assert held / 2**30 == pytest.approx(4.8, abs=0.05)


def test_parameters_are_counted_under_zero3_too():
    """A dry run that accelerate launched with ZeRO-3 ended in "Cannot copy out of meta tensor"."""
    from transformers import LlamaConfig
    from transformers.integrations import deepspeed
    from trl import ModelConfig

    from qsft.recipe.memory import count_parameters

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, **shape)
    expected = count_parameters(config, ModelConfig())
    active = deepspeed.HfDeepSpeedConfig({"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1})
    try:
        assert count_parameters(config, ModelConfig()) == expected
        assert deepspeed.is_deepspeed_zero3_enabled()
        assert active.is_zero3()
    finally:
        deepspeed.unset_hf_deepspeed_config()
