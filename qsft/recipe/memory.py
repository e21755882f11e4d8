"""Bytes per GPU of a training step, part by part, for every strategy of spreading it over GPUs.

Weights, gradients and optimizer states follow from the parameters' shapes and are exact for AdamW. Activations are
measured by tracing the step: the model is built from its config under PyTorch's fake tensor mode, and every operation
of the real forward and backward is dispatched, so they follow from the architecture and not from a formula. CUDA's
context and fragmentation are not included.
"""

import copy
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from peft import PeftConfig, get_peft_model
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.integrations import deepspeed
from trl import ModelConfig, get_peft_config

from qsft.losses.projection import rows_per_block, tile_dtype, tokens_per_chunk, weight_gradient_dtype

FLOAT = 4  # bytes of a float32
STEP_COUNTER = FLOAT  # AdamW keeps one float32 per parameter tensor
DEEPSPEED_BUCKET = 500_000_000  # its default reduce_bucket_size, in numbers
DEEPSPEED_LIVE = 1_000_000_000  # its default stage3_max_live_parameters
TRACED_LAYERS = (2, 4)


class StepShape(NamedTuple):
    """The shape of one micro-batch and how it is computed."""

    batch: int
    length: int
    dtype: torch.dtype
    autocast: torch.dtype | None = None
    checkpointing: bool = True


class StepTrace(NamedTuple):
    """A model's parameters, and the bytes that a step allocates beside them and their gradients."""

    parameters: tuple[Tensor, ...]  # on the meta device: shape, dtype and requires_grad, but no memory
    head: Tensor
    block: int  # numbers in the largest transformer block
    outside: int  # numbers outside all blocks
    activations: int  # peak of the backbone's forward and backward
    full_logits: int  # peak of the plain head: logits of every position, cross-entropy, backward

    @property
    def trained(self) -> list[Tensor]:
        return [p for p in self.parameters if p.requires_grad]


class Memory(NamedTuple):
    """Bytes on one GPU. Activations and head do not peak at the same moment, so the total is an upper bound."""

    weights: int
    gradients: int
    optimizer: int
    exchange: int  # buffers of the strategy: gradient buckets, weights gathered while they are used
    activations: int = 0
    head: int = 0

    @property
    def total(self) -> int:
        return sum(self)


def ddp(model: StepTrace, gpus: int, mixed: torch.dtype | None) -> Memory:
    """Everything on every GPU; the reducer's buckets hold a second copy of the gradients."""
    gradients = sum(p.nbytes for p in model.trained)
    return Memory(
        weights=sum(p.nbytes for p in model.parameters),
        gradients=gradients,
        optimizer=2 * gradients + STEP_COUNTER * len(model.trained),
        exchange=gradients if gpus > 1 else 0,
    )


def fsdp2(model: StepTrace, gpus: int, mixed: torch.dtype | None) -> Memory:
    """Each parameter split along its first dimension; with mixed precision the shards that train are float32.

    Gathered in the compute dtype, on one GPU too: everything outside the blocks, the block at work and the one fetched
    ahead, and the gradients of one block before they are spread again.
    """

    def shard(p: Tensor) -> int:
        rows = p.shape[0] if p.shape else 1
        width = FLOAT if mixed and p.requires_grad else p.itemsize
        return _ceil(rows, gpus) * (p.numel() // rows) * width

    trained = sum(map(shard, model.trained))
    return Memory(
        weights=sum(map(shard, model.parameters)),
        gradients=trained,
        optimizer=2 * trained + STEP_COUNTER * len(model.trained),
        exchange=(model.outside + 3 * model.block) * (mixed or model.head.dtype).itemsize,
    )


def zero2(model: StepTrace, gpus: int, mixed: torch.dtype | None) -> Memory:
    """Complete weights; one flat share of gradients, of float32 master weights and of AdamW's two moments."""
    width = _deepspeed_dtype(model, mixed).itemsize
    trained = sum(p.numel() for p in model.trained)
    return Memory(
        weights=sum(p.numel() for p in model.parameters) * width,
        gradients=_ceil(trained, gpus) * width,
        optimizer=_ceil(trained, gpus) * 3 * FLOAT,
        exchange=min(trained, DEEPSPEED_BUCKET) * width,
    )


def zero3(model: StepTrace, gpus: int, mixed: torch.dtype | None) -> Memory:
    """One share of everything; weights are gathered for the time they are used, up to DeepSpeed's limit.

    Float32 weights are their own master weights.
    """
    dtype = _deepspeed_dtype(model, mixed)
    master_weights = 0 if dtype == torch.float32 else 1
    trained = sum(_ceil(p.numel(), gpus) for p in model.trained)
    live = min(sum(p.numel() for p in model.parameters), DEEPSPEED_LIVE)
    bucket = min(sum(p.numel() for p in model.trained), DEEPSPEED_BUCKET)
    return Memory(
        weights=sum(_ceil(p.numel(), gpus) for p in model.parameters) * dtype.itemsize,
        gradients=trained * dtype.itemsize,
        optimizer=trained * (2 + master_weights) * FLOAT,
        exchange=(live + bucket) * dtype.itemsize if gpus > 1 else 0,
    )


def _deepspeed_dtype(model: StepTrace, mixed: torch.dtype | None) -> torch.dtype:
    """The dtype of DeepSpeed's weights and gradients: float32 weights stay float32 under bf16 (train/precision.py)."""
    dtype = model.head.dtype
    if mixed is None or (dtype == torch.float32 and mixed == torch.bfloat16):
        return dtype
    return mixed


STRATEGIES = {"DDP": ddp, "FSDP2": fsdp2, "ZeRO-2": zero2, "ZeRO-3": zero3}


def _ceil(number: int, parts: int) -> int:
    return -(-number // parts)


class Allocations(TorchDispatchMode):
    """Counts the bytes of the tensors made while entered: `live` now, `peak` at most."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._bytes: dict[int, int] = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for storage in (leaf.untyped_storage() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)):
            if storage._cdata not in self._bytes:
                self._bytes[storage._cdata] = storage.nbytes()
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._drop, storage._cdata)
        return out

    def _drop(self, key: int) -> None:
        self.live -= self._bytes.pop(key)


def trace_step(config: PretrainedConfig, step: StepShape, adapter: PeftConfig | None = None) -> StepTrace:
    """Run one micro-batch forward and backward on tensors that have a shape but no memory.

    Of a deep model, two shallow versions are traced: activations grow by the same amount with every layer.
    """
    with torch.device("meta"):
        causal: Any = AutoModelForCausalLM.from_config(config, dtype=step.dtype)
        model = causal if adapter is None else _add_adapter(causal, adapter)
    parameters = tuple(model.parameters())
    # What sharding treats as one unit: the classes that transformers marks so.
    units = [m for m in causal.modules() if type(m).__name__ in (causal._no_split_modules or ())]
    blocks = [sum(p.numel() for p in unit.parameters()) for unit in units]
    layers = config.num_hidden_layers
    if layers <= TRACED_LAYERS[1]:
        activations, full_logits = _trace(config, step, adapter)
    else:
        few, more = TRACED_LAYERS
        fewer_activations, _ = _trace(_with_layers(config, few), step, adapter)
        activations, full_logits = _trace(_with_layers(config, more), step, adapter)
        activations += (activations - fewer_activations) * (layers - more) // (more - few)
    return StepTrace(
        parameters=parameters,
        head=causal.get_output_embeddings().weight,
        block=max(blocks, default=0),
        outside=sum(p.numel() for p in parameters) - sum(blocks),
        activations=activations,
        full_logits=full_logits,
    )


def _with_layers(config: PretrainedConfig, layers: int) -> PretrainedConfig:
    """The same architecture with fewer layers."""
    shallow = copy.deepcopy(config)
    if getattr(shallow, "layer_types", None) is not None:
        shallow.layer_types = shallow.layer_types[:layers]
    shallow.num_hidden_layers = layers
    return shallow


def _trace(config: PretrainedConfig, step: StepShape, adapter: PeftConfig | None) -> tuple[int, int]:
    """Return the peak bytes of the backbone's forward and backward, and of the plain head's."""
    with torch.device("meta"):
        causal: Any = AutoModelForCausalLM.from_config(config, dtype=step.dtype, attn_implementation="sdpa").train()
        model = causal if adapter is None else _add_adapter(causal, adapter)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")  # for which attention picks kernels that need no T×T matrix
        causal.tie_weights()
        if step.checkpointing:
            _enable_checkpointing(causal)
            if adapter is not None:
                causal.enable_input_require_grads()
        activations, hidden = _peak(model, lambda: run_backbone(causal, step))
        full_logits, _ = _peak(model, lambda: run_plain_head(causal, hidden))
    return activations, full_logits


def _add_adapter(causal: Any, adapter: PeftConfig) -> Any:
    with warnings.catch_warnings():
        # PEFT 0.21 reads a property that transformers 5.23 has renamed; nobody who plans can do anything about it.
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(causal, adapter)


def _enable_checkpointing(causal: Any) -> None:
    """Turn on activation checkpointing, by its name in the installed transformers (renamed in 5.23)."""
    enable = getattr(causal, "activation_checkpointing_enable", None) or causal.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def run_backbone(causal: Any, step: StepShape) -> Tensor:
    """Run the forward and backward of the backbone, and return its last hidden states."""
    ids = torch.zeros(step.batch, step.length, dtype=torch.long)
    with nullcontext() if step.autocast is None else torch.autocast("cpu", step.autocast):
        hidden: Tensor = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
    hidden.backward(torch.zeros_like(hidden))
    return hidden


def run_plain_head(causal: Any, hidden: Tensor) -> Tensor:
    """Run the cross-entropy over the logits of every position, as a model computes it by itself, and its backward."""
    hidden = hidden.detach().requires_grad_()
    logits = causal.get_output_embeddings()(hidden).float()
    labels = torch.zeros(hidden.shape[:-1], dtype=torch.long)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    loss.backward()
    return loss


def _peak(model: nn.Module, run: Callable[[], Tensor]) -> tuple[int, Tensor]:
    """Return the most bytes that `run` allocates beside the model and its gradients, and what `run` returns."""
    for parameter in model.parameters():
        if parameter.requires_grad:  # from the second micro-batch on gradients exist and are added to
            parameter.grad = torch.zeros_like(parameter)
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters if p.grad is not None]
    with Allocations([*parameters, *gradients, *model.buffers()]) as allocations:
        result = run()
    return allocations.peak, result


@contextmanager
def _without_zero3() -> Iterator[None]:
    """Build models as without DeepSpeed: under ZeRO-3 transformers initializes their weights, which meta lacks."""
    reference = deepspeed._hf_deepspeed_config_weak_ref
    active = reference() if reference is not None else None
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if active is not None:
            deepspeed.set_hf_deepspeed_config(active)


def count_parameters(config: PretrainedConfig, model: ModelConfig) -> tuple[int, int]:
    """Return (all parameters, trained parameters) of a model, with the adapter of its configuration."""
    with _without_zero3(), torch.device("meta"):
        causal: Any = AutoModelForCausalLM.from_config(config)
        adapter = get_peft_config(model)
        if adapter is not None:
            causal = _add_adapter(causal, adapter)
    total = sum(p.numel() for p in causal.parameters())
    trained = sum(p.numel() for p in causal.parameters() if p.requires_grad)
    return total, trained


def head_bytes(
    tokens: int,
    hidden: int,
    vocabulary: int,
    *,
    trained: bool = True,
    top_k: int = 0,
    compute: torch.dtype = torch.bfloat16,
    weight_dtype: torch.dtype | None = None,
    device: str = "cuda",
    kernels: bool = False,
    tile_mib: float | None = None,
) -> int:
    """Return the peak bytes of the fused head over `tokens` label positions with a cached top-k teacher.

    While the loss is computed: the tile of logits, the blocks it is processed in (the Triton kernels need none), the
    gradients of hidden states and weight, the teacher's log-probs, and a cast copy of the weight under autocast. In the
    backward the tile is freed, and gradients in another dtype than their tensors are cast.

    Args:
        compute: dtype of the matmuls and of the hidden states.
        weight_dtype: by default `compute`.
        tile_mib: `head_tile_mib` of the config.
    """
    weight_dtype = weight_dtype or compute
    tile = tile_dtype(compute, device, kernels=kernels)
    chunk = tokens_per_chunk(tokens, vocabulary, tile, device, hidden if trained else 0, tile_mib)
    one_chunk = tokens <= chunk
    blocks = 0
    if not kernels:
        rows = min(chunk, rows_per_block(vocabulary, torch.float32, device))
        float32_blocks = 1 if tile == torch.float32 else 2  # p, and the logits unless their tile is float32
        blocks = float32_blocks * rows * vocabulary * FLOAT
    grad_hidden = tokens * hidden * tile.itemsize
    grad_weight = 0
    cast_weight_gradient = 0
    if trained:
        written = weight_gradient_dtype(weight_dtype, compute, tile, one_chunk=one_chunk)
        grad_weight = vocabulary * hidden * written.itemsize
        cast_weight_gradient = vocabulary * hidden * weight_dtype.itemsize if written != weight_dtype else 0
    cast_weight = vocabulary * hidden * compute.itemsize if weight_dtype != compute else 0
    teacher = tokens * top_k * (8 + FLOAT)  # ids and log-probs
    in_forward = chunk * vocabulary * tile.itemsize + blocks + cast_weight + teacher
    cast_hidden_gradient = tokens * hidden * compute.itemsize if tile != compute else 0
    in_backward = cast_weight_gradient + cast_hidden_gradient
    return grad_hidden + grad_weight + max(in_forward, in_backward)
