"""Nothing that leaves the model's forward may be rounded to bf16: the loss is a sum over thousands of tokens."""

from dataclasses import replace

import torch
from accelerate import Accelerator


def keep_float_outputs(accelerator: Accelerator) -> None:
    """Make FSDP2 return the loss in float32 and reduce gradients in float32; accelerate asks for bf16 in both."""
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is not None and plugin.fsdp_version == 2 and plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, output_dtype=None, reduce_dtype=torch.float32
        )
