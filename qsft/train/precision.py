"""Weights keep their precision: what accelerate and DeepSpeed would round, and 4-bit weights on a CPU."""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers.utils import logging

from qsft.train.config import as_dict

logger = logging.get_logger(__name__)

# DeepSpeed's section for float32 weights under torch.autocast. Without "safe" modules gradients are reduced in float32,
# as DDP reduces them; by default those of linear layers would be rounded to bf16 first.
TORCH_AUTOCAST = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
PACKS_4BIT_ON_CPU = "support_avx512bf16_for_cpu"  # of bitsandbytes' Linear4bit


def keep_weights_in_float32(args: Any, model: str | nn.Module) -> None:
    """Make DeepSpeed train float32 weights under bf16 autocast, as DDP does, where the user requested both.

    accelerate turns bf16=True into DeepSpeed's section `bf16`, which rounds the model's weights to bf16 and makes its
    float32 master weights from the rounded ones. The section `torch_autocast` rounds neither. Weights that are loaded
    in bf16 keep the section `bf16`. So does a DeepSpeed file of the user's own, with a warning.

    This must happen before the model is loaded: under ZeRO-3 it is loaded in the dtype of DeepSpeed's configuration.

    Args:
        model: the student or its name.
    """
    plugin = args.deepspeed_plugin
    if plugin is None or not args.bf16 or not _has_float32_weights(model, args):
        return
    config = plugin.deepspeed_config
    if config.get("torch_autocast", {}).get("enabled"):
        return
    if args.deepspeed or os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none") != "none":
        logger.warning(
            "the DeepSpeed configuration rounds the student's float32 weights to bf16 before training. To keep them, "
            f'replace its section "bf16" by "bf16": {{}} and "torch_autocast": {TORCH_AUTOCAST}.'
        )
        return
    # Not removed but empty: accelerate would add a missing section, and transformers compares a value with args.bf16.
    config["bf16"] = {}
    config["torch_autocast"] = TORCH_AUTOCAST
    plugin.set_deepspeed_weakref()  # from_pretrained reads a copy


def _has_float32_weights(model: str | nn.Module, args: Any) -> bool:
    if isinstance(model, nn.Module):
        return model.dtype == torch.float32
    return as_dict(args.model_init_kwargs).get("dtype", "float32") in ("float32", torch.float32)


def keep_loss_in_float32(accelerator: Accelerator) -> None:
    """Make FSDP2 return the loss in float32, and reduce gradients in float32 where the user chose nothing.

    The loss is a sum over thousands of tokens: bf16 rounds it to three digits. accelerate's own policy has one dtype.
    """
    plugin = getattr(accelerator.state, "fsdp_plugin", None)
    if plugin is None or plugin.fsdp_version != 2 or plugin.mixed_precision_policy is None:
        return
    policy = plugin.mixed_precision_policy
    is_default = policy.param_dtype == policy.reduce_dtype == policy.output_dtype
    reduce_dtype = torch.float32 if is_default else policy.reduce_dtype
    logger.info(f"FSDP2 returns the loss in float32 and reduces gradients in {reduce_dtype or policy.param_dtype}.")
    plugin.mixed_precision_policy = replace(policy, output_dtype=None, reduce_dtype=reduce_dtype)


def student_autocast(accelerator: Accelerator) -> AbstractContextManager[Any]:
    """The autocast that the student's forward runs under; accelerate does not know the one that DeepSpeed enters."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if plugin is not None and plugin.deepspeed_config.get("torch_autocast", {}).get("enabled"):
        return torch.autocast(accelerator.device.type, torch.bfloat16)
    return accelerator.autocast()


def keep_4bit_weights_trainable(model: nn.Module) -> None:
    """Keep bitsandbytes from packing a student's 4-bit weights for fast inference on a CPU with AVX512-BF16.

    It does so in a forward in evaluation mode, and training afterwards fails. Evaluation, psft and a base that is the
    student itself run the student in evaluation mode.
    """
    for module in model.modules():
        if hasattr(module, PACKS_4BIT_ON_CPU):
            setattr(module, PACKS_4BIT_ON_CPU, False)
