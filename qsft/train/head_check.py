"""A self-check before the first step: the fused head against the model's own full logits, on a few tokens.

TRL's and transformers' internals move. A head that misses a new scale or soft-cap would train a wrong loss silently.
"""

from typing import Any

import torch
from torch import nn

from qsft.losses.evaluation_mode import evaluating
from qsft.losses.head import MODEL_INPUTS
from qsft.losses.reference import target_loss
from qsft.targets.registry import make_target
from qsft.targets.view import IGNORED

CHECKED_TOKENS = 16
FULL_PRECISION = 1e-3  # relative
HALF_PRECISION = 3e-2  # bf16 keeps 8 bits


@torch.no_grad()
def check_head(model: nn.Module, inputs: dict[str, Any]) -> None:
    """Check that the head's loss on the first tokens of the batch equals that of the model's own logits.

    Runs through the wrapped model, so it holds under DDP, FSDP and ZeRO; every process takes part.

    Raises:
        ValueError: the model's own logits are not finite.
        RuntimeError: the losses differ by more than rounding.
    """
    few = {name: inputs[name][:1, :CHECKED_TOKENS] for name in MODEL_INPUTS if name in inputs}
    sft = make_target("sft")
    labels = few["input_ids"].clone()
    labels[:, 0] = IGNORED
    # Dropout would differ between the two, and move the random state of the run.
    with evaluating(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        logits = model(**few, use_cache=False).logits[
            0, -labels.shape[1] : -1
        ]  # after the virtual tokens of prompt learning
        torch.manual_seed(0)
        ours = float(model(**few, labels=labels, target=sft, use_cache=False).loss)
    expected = float(target_loss(logits.float(), labels[0, 1:], sft))
    if not torch.isfinite(logits).all():
        raise ValueError(
            f"the logits of {type(model).__name__} are NaN or infinite on the first batch, before any training: its "
            "weights hold such values, or its dtype cannot represent its activations. Check the checkpoint, or load it "
            "in float32 or bfloat16."
        )
    half = bool({logits.dtype, next(model.parameters()).dtype} & {torch.float16, torch.bfloat16})
    # accelerate's mixed precision wraps forward, and turns what comes out back into float32.
    half = half or any(hasattr(module, "_original_forward") for module in model.modules())
    tolerance = HALF_PRECISION if half else FULL_PRECISION
    if not abs(ours - expected) <= tolerance * max(1.0, abs(expected)):
        raise RuntimeError(
            f"the fused head gives {ours:.6f} where the model's own logits give {expected:.6f}: it does not know how "
            f"{type(model).__name__} turns hidden states into logits, so the loss would be wrong. Report the model and "
            "the versions of transformers and trl; check_head=False trains anyway."
        )
