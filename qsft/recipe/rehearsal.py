"""What a training step will allocate, found by rehearsing it on tensors that have a shape but no memory.

The model is built from its config under PyTorch's fake tensor mode; every operation of the real forward and backward is
dispatched, so activations follow from the architecture itself, whatever it is, and not from a formula kept beside it.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, PretrainedConfig

if TYPE_CHECKING:
    from peft import PeftConfig


class Allocations(TorchDispatchMode):
    """While entered: how many bytes the tensors made inside hold now (`live`), and held at most (`peak`)."""

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._bytes: dict[int, int] = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._bytes:
            return
        self._bytes[storage._cdata] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, storage._cdata)

    def _drop(self, key: int) -> None:
        self.live -= self._bytes.pop(key)


@dataclass(frozen=True)
class Step:
    """The shape of one micro-batch and how it is computed."""

    batch: int
    length: int
    dtype: torch.dtype
    autocast: torch.dtype | None = None
    checkpointing: bool = True


class Parameter(NamedTuple):
    """What the memory of a parameter depends on."""

    shape: torch.Size
    dtype: torch.dtype
    trainable: bool

    @property
    def numel(self) -> int:
        return self.shape.numel()

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class Rehearsed:
    """A model's parameters, and what a step allocates beside them and their gradients, in bytes."""

    parameters: tuple[Parameter, ...]
    head: Parameter
    block: int  # numbers in the largest transformer block
    outside: int  # numbers outside all blocks
    activations: int  # peak of the backbone's forward and backward
    full_logits: int  # peak of the plain head: logits of every position, cross-entropy, backward


@contextmanager
def fake_model(config: PretrainedConfig, dtype: torch.dtype, adapter: "PeftConfig | None") -> Iterator[Any]:
    """A causal LM of that config, in training mode, whose tensors have shapes but no memory."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
        if adapter is not None:
            from peft import get_peft_model

            model = get_peft_model(model, adapter)
    with FakeTensorMode(allow_non_fake_inputs=True):
        pretend_cpu_(model)
        yield model.train()


def pretend_cpu_(model: nn.Module) -> None:
    """Replace meta tensors by fake CPU ones, for which attention picks the kernels that need no T×T matrix."""
    made: dict[Tensor, Tensor] = {}  # tied weights stay tied
    for module in model.modules():
        both: Any = (module._parameters, module._buffers)
        for tensors in both:
            for name, tensor in tensors.items():
                if tensor is not None:
                    tensors[name] = made.setdefault(tensor, _like(tensor))


def _like(tensor: Tensor) -> Tensor:
    fake = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    trained = isinstance(tensor, nn.Parameter)
    return nn.Parameter(fake, requires_grad=tensor.requires_grad) if trained else fake


def rehearse(config: PretrainedConfig, step: Step, adapter: "PeftConfig | None" = None) -> Rehearsed:
    """Run one micro-batch forward and backward on fake tensors."""
    with fake_model(config, step.dtype, adapter) as model:
        causal: Any = model.get_base_model() if adapter is not None else model
        if step.checkpointing:
            causal.gradient_checkpointing_enable({"use_reentrant": False})
            if adapter is not None:
                causal.enable_input_require_grads()
        activations, hidden = _peak(model, lambda: backbone(causal, step))
        full_logits, _ = _peak(model, lambda: plain_head(causal, hidden))
        parameters = tuple(Parameter(p.shape, p.dtype, p.requires_grad) for p in model.parameters())
        head = causal.get_output_embeddings().weight
        blocks = [sum(p.numel() for p in m.parameters()) for m in causal.modules() if is_block(causal, m)]
        return Rehearsed(
            parameters,
            Parameter(head.shape, head.dtype, head.requires_grad),
            max(blocks, default=0),
            sum(p.numel for p in parameters) - sum(blocks),
            activations,
            full_logits,
        )


def is_block(causal: Any, module: nn.Module) -> bool:
    """Whether sharding treats the module as one unit: the classes that transformers marks so."""
    return type(module).__name__ in (causal._no_split_modules or ())


def backbone(causal: Any, step: Step) -> Tensor:
    """Hidden states of a micro-batch, and their backward."""
    ids = torch.zeros(step.batch, step.length, dtype=torch.long)
    with autocast(step):
        hidden: Tensor = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state
    hidden.backward(torch.zeros_like(hidden))
    return hidden


def plain_head(causal: Any, hidden: Tensor) -> Tensor:
    """Cross-entropy over the logits of every position, as a model computes it by itself, and its backward."""
    hidden = hidden.detach().requires_grad_()
    logits = causal.get_output_embeddings()(hidden).float()
    labels = torch.zeros(hidden.shape[:-1], dtype=torch.long)
    loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
    loss.backward()
    return loss


def autocast(step: Step) -> Any:
    return nullcontext() if step.autocast is None else torch.autocast("cpu", step.autocast)


def _peak(model: nn.Module, run: Callable[[], Tensor]) -> tuple[int, Tensor]:
    for parameter in model.parameters():
        if parameter.requires_grad:  # from the second micro-batch on gradients exist and are added to
            parameter.grad = torch.zeros_like(parameter)
    known = [t for p in model.parameters() for t in (p, p.grad) if t is not None] + list(model.buffers())
    with Allocations(known) as allocations:
        result = run()
    return allocations.peak, result
