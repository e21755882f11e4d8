"""Losses of other training frameworks on the same tensors, for those that are installed.

    pip install --no-deps axolotl==0.19.0 ms-swift==4.6.0 liger-kernel==0.8.5 addict==2.4.0

Their code is imported from there and never copied. A framework that is not installed has no row.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import torch

Method = Callable[[Any], None]
PACKAGES = ("trl", "axolotl", "ms-swift", "liger-kernel")


def installed_peers() -> Iterator[tuple[str, Method]]:
    """(name, forward and backward) of each loss whose package is installed."""
    if find_spec("axolotl") and find_spec("liger_kernel"):
        yield "axolotl fused KD", axolotl_fused_kd
        yield "axolotl KD of full logits", axolotl_kd
    if find_spec("swift"):
        yield "ms-swift GKD of full logits", ms_swift_gkd
    if torch.cuda.is_available() and find_spec("liger_kernel"):
        yield "Liger fused head", liger_cross_entropy


def installed_versions() -> dict[str, str]:
    """The versions of TRL and of the other frameworks that are installed."""
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def axolotl_fused_kd(x: Any) -> None:
    """Chunked projection and top-k KL; arguments as axolotl's trainer passes them for KD without a label loss."""
    from axolotl.integrations.kd.kernels.liger import LigerFusedLinearKLTopKLogprobLoss

    loss = LigerFusedLinearKLTopKLogprobLoss(0.0, 1.0, 1.0, 0.0, compute_ce_loss=False)
    mask = torch.ones_like(x.teacher.ids, dtype=torch.bool)
    teacher = (x.teacher.ids[None], x.teacher.logps[None], mask[None])
    loss(x.weight, x.hidden[None], *teacher, x.labels[None]).backward()


def axolotl_kd(x: Any) -> None:
    from axolotl.integrations.kd.topk_logprob.forward_kl import loss

    logits = x.hidden @ x.weight.t()
    mask = torch.ones_like(x.teacher.ids, dtype=torch.bool)
    loss(logits[None], x.teacher.ids[None], x.teacher.logps[None], mask[None], num_items_in_batch=1).backward()


def ms_swift_gkd(x: Any) -> None:
    """Forward KL on the teacher's top k; student and teacher are renormalized there."""
    from swift.rlhf_trainers.gkd_loss import TeacherOutput, gkd_loss

    logits = x.hidden @ x.weight.t()
    teacher = TeacherOutput(topk_logprobs=x.teacher.logps[None], topk_indices=x.teacher.ids[None])
    total, _ = gkd_loss(logits[None], teacher, x.labels[None], beta=0.0, temperature=1.0)
    total.backward()


def liger_cross_entropy(x: Any) -> None:
    """Plain SFT."""
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    liger_fused_linear_cross_entropy(x.hidden, x.weight, x.labels, reduction="sum").backward()
