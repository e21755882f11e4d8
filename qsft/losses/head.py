"""The fused head inside `model.forward`: where hidden states meet labels and teacher.

Labels are shifted here for training, scoring and capturing: `_label_rows` pairs the state at t−1 with the label at t,
`_rows` takes what else is known of token t, and `find_label_positions` is what a collator may call beforehand. The head
runs inside the model's own forward, selected by a keyword, and there inside its output layer, so that the hooks of
DDP, FSDP2 and ZeRO run as they do without it:

    attach_target_head(model)
    model(input_ids=…, labels=…, target=Target(…), teacher_ids=…, teacher_logps=…)   -> TargetOutput
    model(input_ids=…)                                                              -> as before; generate too

Teacher and side inputs are aligned with `labels`: entry t describes token t given the tokens before it.
Floats that cross `forward` are carried as integers (`to_bits`), because ZeRO and FSDP2 round floats to bf16 on the way.
Float16 is carried as two bytes each, because neither NCCL nor gloo sends int16, and accelerate may dispatch batches.
"""

import functools
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from qsft.losses.fused import fused_target_loss
from qsft.losses.label_tokens import LabelTokens, fused_label_logps
from qsft.losses.projection import Projection
from qsft.targets.target import Target, check_is_target
from qsft.targets.view import IGNORED, SideInputs, TopK

MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids")  # what the model itself reads of a batch
TEACHER_INPUTS = ("teacher_ids", "teacher_logps", "teacher_label_logp", "teacher_log_tail")
SIDE_INPUTS = ("ref_logp", "old_logp", "weight", "critical", "document")
CARRIED_AS_BITS = (*TEACHER_INPUTS[1:], "ref_logp", "old_logp", "weight")
COLUMN_INPUT = "column_"  # prefix of further columns of the data set, which are carried as bits too
LABEL_POSITIONS = "label_positions"  # what `find_label_positions` returns
HEAD_INPUTS = (*TEACHER_INPUTS, *SIDE_INPUTS, "teacher", "vocab_size", LABEL_POSITIONS)


@dataclass
class TargetOutput(ModelOutput):
    """What `model(…, target=…)` returns.

    Args:
        loss: Σ over label tokens of the target's loss, differentiable; not yet normalized.
        sums: the sums behind the metrics, in the order of losses.sums.SUM_NAMES.
        aux_loss: the mixture-of-experts balancing loss, where the model has one; not part of `loss`.
    """

    loss: Tensor | None = None
    sums: Tensor | None = None
    aux_loss: Tensor | None = None


@dataclass(frozen=True)
class HeadOptions:
    """How an attached head computes; the options change its results by rounding only.

    Args:
        kernel: "auto", "torch" or "triton": see `fused_target_loss`.
        tile_mib: the most memory for the tile of logits, in MiB; None is the default of `tokens_per_chunk`.
    """

    kernel: str = "auto"
    tile_mib: float | None = None


@dataclass(frozen=True)
class Head:
    """A model's output head, gathered and ready for matmuls."""

    weight: Float[Tensor, "V H"]
    bias: Float[Tensor, " V"] | None
    projection: Projection


def to_bits(values: Tensor) -> Tensor:
    """Float32 as int32, float16 as two int8 in a further last dimension: no mixed-precision wrapper rounds them."""
    if values.dtype == torch.float16:
        return values.unsqueeze(-1).view(torch.int8)
    return values.view(torch.int32)


def from_bits(bits: Tensor) -> Tensor:
    """The floats of `to_bits`; a float tensor is returned as it is."""
    if bits.dtype == torch.int8:
        return bits.view(torch.float16).squeeze(-1)
    if bits.dtype == torch.int32:
        return bits.view(torch.float32)
    return bits


def find_label_positions(labels: Int[Tensor, "B T"]) -> Int[Tensor, " N"]:
    """The positions of the label tokens in the flattened labels[:, 1:].

    A batch that has them saves the head a host-device synchronization: see LabelTokens.
    """
    positions: Tensor = (labels[:, 1:] != IGNORED).flatten().nonzero()[:, 0]
    return positions


def base_causal_lm(model: nn.Module) -> nn.Module:
    """The causal LM itself, without the wrappers of DDP, torch.compile and PEFT."""
    for wrapper in ("module", "_orig_mod"):
        while isinstance(getattr(model, wrapper, None), nn.Module):
            model = getattr(model, wrapper)
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]


def attach_target_head(model: nn.Module, options: HeadOptions | None = None) -> None:
    """Give `model.forward` the keywords `target=` and `label_logps=`; without them it is unchanged.

    Call it after PEFT has wrapped the model and before accelerate does. A second call changes only the options, where
    they are given.
    """
    base = base_causal_lm(model)
    check_head_has_no_adapter(base)
    base.target_head_options = options or getattr(base, "target_head_options", HeadOptions())  # type: ignore[assignment]
    if hasattr(base, "forward_without_target"):  # on the module: accelerate wraps the forward once more
        return
    # A bound method on the module, not a variable of `forward`: a deep copy of the model gets its own.
    base.forward_without_target = base.forward  # type: ignore[assignment]

    # The original signature stays visible: generate and Trainer read it.
    @functools.wraps(type(base).forward)
    def forward(
        self: nn.Module, *args: Any, target: Target | None = None, label_logps: bool = False, **kwargs: Any
    ) -> Any:
        if target is None and not label_logps:
            return self.forward_without_target(*args, **kwargs)  # type: ignore[operator]
        if kwargs.get("labels") is None:
            raise ValueError("model(…, target=…) needs `labels`: pass the batch's labels [B, T], −100 where ignored.")
        if target is not None:
            check_is_target(target)
        labels = kwargs.pop("labels")
        given = {name: kwargs.pop(name, None) for name in HEAD_INPUTS}
        given["columns"] = {name: kwargs.pop(name) for name in list(kwargs) if name.startswith(COLUMN_INPUT)}
        states, aux_loss = backbone_states(self, args, kwargs)
        if target is None:
            return _label_logps(self, states, labels, given[LABEL_POSITIONS])
        loss, sums = _target_loss(self, states, labels, target, given)
        return TargetOutput(loss=loss, sums=sums, aux_loss=aux_loss)

    base.forward = types.MethodType(forward, base)


def label_logps(model: nn.Module, **inputs: Any) -> Float[Tensor, "B T"]:
    """log p of every label token given the tokens before it (0 where ignored): no gradient, no full logits.

    `inputs` are those of `model.forward` with `labels`; a model wrapped by DDP, FSDP2 or ZeRO is called as it is.
    """
    attach_target_head(model)
    with torch.no_grad():
        logps: Tensor = model(**inputs, label_logps=True)
    return logps


def label_states(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], labels: Int[Tensor, "B T"]
) -> tuple[Float[Tensor, "N H"], LabelTokens]:
    """The hidden states that predict a label, and those labels (their index is into labels[:, 1:])."""
    positions = kwargs.pop(LABEL_POSITIONS, None)
    return _label_rows(backbone_states(model, args, kwargs)[0], labels, positions)


def output_head(model: nn.Module) -> Head:
    """The head of `model` as it is now: FSDP and PEFT replace parameters after the head was attached."""
    layer = output_layer(model)
    return Head(
        weight=_whole(layer.weight),
        bias=_whole(getattr(layer, "bias", None)),
        projection=projection_of(base_causal_lm(model).config),
    )


def output_layer(model: nn.Module) -> Any:
    """The module that holds the head's weight: under PEFT perhaps the copy that is trained."""
    layer: Any = base_causal_lm(model).get_output_embeddings()  # type: ignore[operator]
    if not hasattr(layer, "modules_to_save"):
        return layer
    active = [name for name in layer.active_adapters if name in layer.modules_to_save and not layer.disable_adapters]
    return layer.modules_to_save[active[0]] if active else layer.original_module


def projection_of(config: Any) -> Projection:
    """Soft-cap and factor that a model applies to its logits, by the names the architectures use."""
    text = config.get_text_config()

    def first(*names: str) -> float | None:
        return next((float(getattr(text, name)) for name in names if getattr(text, name, None) is not None), None)

    softcap = first("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
    factor = first("logit_scale", "output_multiplier", "lm_head_multiplier")
    divisor = first("logits_scaling")
    if factor is None and divisor is not None:  # Granite and MiniCPM3 divide by it, HyperCLOVA X multiplies
        factor = divisor if text.model_type == "hyperclovax" else 1.0 / divisor
    return Projection(softcap, 1.0 if factor is None else factor)


def check_head_has_no_adapter(base: nn.Module) -> None:
    """Raise when an adapter sits on the output head: its weight alone is then not what makes the logits."""
    layer = base.get_output_embeddings()  # type: ignore[operator]
    if layer is None:
        raise ValueError(f"{type(base).__name__} has no output embedding, so there is nothing to train a target on.")
    if hasattr(layer, "modules_to_save"):  # a full copy of the head: its weight alone makes the logits
        return
    if hasattr(layer, "token_adapter"):
        raise ValueError(
            "trainable_token_indices on a model whose input and output embeddings are tied also adapts the output head "
            "(lm_head), which the fused head does not support: it reads the head's own weight. Remove "
            'trainable_token_indices, or train the embeddings fully with modules_to_save=["embed_tokens", "lm_head"].'
        )
    if hasattr(layer, "base_layer"):
        raise ValueError(
            "an adapter on the output head (lm_head) is not supported: the fused head reads the head's own weight and "
            'would leave the adapter out. Take "lm_head" out of target_modules, or train it fully with '
            'modules_to_save=["lm_head"].'
        )


# ---- behind the backbone: torch.compile traces it and stops here. Everything is an argument: what a traced function
# closes over is the first call's for all that follow.


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _target_loss(
    model: nn.Module, states: Float[Tensor, "B T H"], labels: Int[Tensor, "B T"], target: Target, given: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    hidden, tokens = _label_rows(states, labels, given[LABEL_POSITIONS])
    length = labels.shape[1]
    ids, *teacher_rows = (_rows(name, given[name], tokens, length) for name in TEACHER_INPUTS)
    teacher = given["teacher"]
    if teacher is None and ids is not None:
        teacher = TopK(ids.long(), *teacher_rows)
    side_rows = {name: _rows(name, given[name], tokens, length) for name in SIDE_INPUTS}
    columns = {
        name.removeprefix(COLUMN_INPUT): _rows(name, value, tokens, length) for name, value in given["columns"].items()
    }
    side = SideInputs(**side_rows, columns=columns, vocab_size=given["vocab_size"])
    options = _options(model)

    def fused(hidden: Tensor, head: Head) -> tuple[Tensor, Tensor]:
        out = fused_target_loss(
            hidden, head.weight, tokens.to(hidden.device), target, teacher,
            side=side, bias=head.bias, **asdict(head.projection),
            head_kernel=options.kernel, tile_mib=options.tile_mib,
        )  # fmt: skip
        return out.loss, out.sums  # a tuple: hooks look for tensors in it

    result: tuple[Tensor, Tensor] = _in_output_layer(model, hidden, fused)
    return result


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _label_logps(model: nn.Module, states: Tensor, labels: Tensor, positions: Tensor | None) -> Float[Tensor, "B T"]:
    hidden, tokens = _label_rows(states, labels, positions)

    def fused(hidden: Tensor, head: Head) -> Tensor:
        tokens.check(len(head.weight))
        return fused_label_logps(
            hidden, head.weight, head.bias, tokens.labels.to(hidden.device), head.projection,
            tile_mib=_options(model).tile_mib,
        )  # fmt: skip

    logps: Tensor = _in_output_layer(model, hidden, fused).to(tokens.index.device)
    after_first = logps.new_zeros(labels[:, 1:].shape)
    after_first.view(-1)[tokens.index] = logps
    return nn.functional.pad(after_first, (1, 0))


def _options(model: nn.Module) -> HeadOptions:
    """The options that `attach_target_head` was given."""
    options: Any = base_causal_lm(model).target_head_options
    return options  # type: ignore[no-any-return]


def _in_output_layer(model: nn.Module, hidden: Float[Tensor, "N H"], compute: Callable[[Tensor, Head], Any]) -> Any:
    """compute(hidden, head), run as the forward of the model's output layer, so that the layer's hooks fire.

    ZeRO-3 gathers the weight in those hooks: before the forward, where it waits for a gather that is under way, and
    before the backward, where the weight must be whole for its gradient to be taken.
    """

    def forward(hidden: Tensor) -> Any:
        head = output_head(model)
        # With device_map the backbone may end on another device than the head.
        return compute(hidden.to(head.weight.device), head)

    layer = output_layer(model)
    own = vars(layer).get("forward")  # set on the instance by accelerate's hooks, else the class's
    layer.forward = forward
    try:
        return layer(hidden)
    finally:
        del layer.forward
        if own is not None:
            layer.forward = own


def backbone_states(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Float[Tensor, "B T H"], Tensor | None]:
    """The last hidden states of the causal LM's backbone, and its auxiliary loss where it has one."""
    config: Any = model.config.get_text_config()  # type: ignore[union-attr, operator]
    kwargs["use_cache"] = False
    if getattr(config, "output_router_logits", False):
        kwargs.setdefault("output_router_logits", True)
    backbone: Any = model.base_model if model.base_model is not model else model.model  # Llama 4 names another prefix
    outputs = backbone(*args, **kwargs)
    if not kwargs.get("output_router_logits") or getattr(outputs, "router_logits", None) is None:
        return outputs.last_hidden_state, None
    # Every mixture-of-experts family of transformers takes its balancing loss from Mixtral's.
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    experts = getattr(config, "num_experts", None) or config.num_local_experts
    mask = kwargs.get("attention_mask")
    aux_loss = load_balancing_loss_func(outputs.router_logits, experts, config.num_experts_per_tok, mask)
    return outputs.last_hidden_state, torch.as_tensor(aux_loss)


def _label_rows(
    states: Float[Tensor, "B T H"], labels: Int[Tensor, "B T"], positions: Int[Tensor, " N"] | None
) -> tuple[Float[Tensor, "N H"], LabelTokens]:
    """The hidden states that predict a label, and those labels: the state at t−1 predicts token t."""
    tokens = LabelTokens.of(labels[:, 1:].to(states.device), positions)
    return tokens.rows(states[:, :-1].flatten(0, 1)), tokens


def _rows(name: str, value: Tensor | None, tokens: LabelTokens, length: int) -> Any:
    """A [B, T, …] input at the label positions [N, …], shifted with the labels; bits are floats again.

    Args:
        length: T of the labels. Prompt learning puts virtual tokens before the labels, which have no such input.
    """
    if value is None:
        return None
    virtual_tokens = length - value.shape[1]
    if virtual_tokens:
        value = torch.cat([value.new_zeros(value.shape[0], virtual_tokens, *value.shape[2:]), value], dim=1)
    rows = tokens.rows(value.to(tokens.index.device)[:, 1:].flatten(0, 1))
    return from_bits(rows) if name in CARRIED_AS_BITS or name.startswith(COLUMN_INPUT) else rows


def _whole(parameter: Tensor | None) -> Any:
    """The complete parameter, also under FSDP2 where no hook has gathered it."""
    # The backward of full_tensor() reshards the gradient.
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter  # type: ignore[union-attr]
