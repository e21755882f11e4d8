"""From sums to metrics: sums stay on the device between two logs, then one reduction over processes and one copy.

Sums, not means of means: a metric is exact whatever the batch sizes, accumulation and number of processes.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from qsft.losses.sums import GAMMA_BINS, QUADRANTS, SUM_NAMES

Reduce = Callable[[Tensor], Tensor]  # a sum over processes
TOKENS_READ = "tokens_read"  # tokens the model read, prompts included: TRL's num_tokens
NONFINITE = "nonfinite"  # micro-batches whose loss was NaN or infinite
NAMES = (*SUM_NAMES, TOKENS_READ, NONFINITE, "aux_loss", "micro_batches")
MEANS = ("label_loss", "residual_loss", "nll", "entropy", "gamma")
TEACHER_SHARES = ("support_mass", "teacher_tail", "label_in_topk", "teacher_disagrees", *QUADRANTS)
QUARTILES = {"gamma_q25": 0.25, "gamma_q50": 0.5, "gamma_q75": 0.75}
TRL_METRICS = ("entropy", "mean_token_accuracy", "num_tokens", "aux_loss")  # the names that TRL logs


class MetricSums:
    """The sums under NAMES since the last reset, on the device."""

    def __init__(self) -> None:
        self.total: Tensor | None = None

    def add(self, sums: Tensor, tokens_read: Tensor | int, loss: Tensor, aux_loss: Tensor | None = None) -> None:
        """Add one micro-batch without a host-device synchronization.

        Args:
            sums: the head's sums, in the order of SUM_NAMES.
            loss: the micro-batch's loss, only to see whether it is finite.
        """
        # float32 stops counting at 2^24 tokens; Apple's GPUs have no float64.
        dtype = torch.float32 if sums.device.type == "mps" else torch.float64
        nonfinite = ~torch.isfinite(loss.detach())
        rest = [tokens_read, nonfinite, 0 if aux_loss is None else aux_loss.detach(), 1]
        # new_full fills on the device; torch.tensor would copy from the host and synchronize.
        tensors = [value if isinstance(value, Tensor) else sums.new_full((), value) for value in rest]
        batch = torch.cat([sums.detach().to(dtype), *(value.to(sums.device, dtype).view(1) for value in tensors)])
        self.total = batch if self.total is None else self.total + batch

    def read(self, reduce: Reduce) -> dict[str, float]:
        """The sums over all processes by name; empty when nothing was added since the last reset."""
        if self.total is None:
            return {}
        values = reduce(self.total.clone()).tolist()
        return dict(zip(NAMES, values, strict=True))

    def take(self, reduce: Reduce) -> dict[str, float]:
        """The sums over all processes by name, then reset."""
        sums = self.read(reduce)
        self.reset()
        return sums

    def clear_tokens_read(self) -> None:
        """Set the tokens read to zero, because they were added to the run's total; the other sums stay."""
        if self.total is not None:
            self.total[NAMES.index(TOKENS_READ)] = 0

    def reset(self) -> None:
        self.total = None


def check_finite(sums: Mapping[str, float], step: int) -> None:
    """Raise FloatingPointError when the loss of a micro-batch behind these sums was NaN or infinite.

    Args:
        step: the last completed optimizer step, for the message.
    """
    if not sums.get(NONFINITE):
        return
    if math.isfinite(sums["nll"]):
        culprit = "the target's distribution (the student's own log-probs are finite: check the teacher)"
    else:
        culprit = "the student's log-probs (check the learning rate, the precision and the initial weights)"
    raise FloatingPointError(
        f"the loss was NaN or infinite in {int(sums[NONFINITE])} of {int(sums['micro_batches'])} micro-batches since "
        f"the last log or checkpoint, up to step {step}. Not finite: {culprit}. Training stops before this reaches a "
        "checkpoint; resume from the last one with other settings, or set stop_on_nonfinite_loss=False to go on as "
        "plain Trainer does."
    )


def compute_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """What is logged: means per label token, γ's quartiles, and with a teacher its coverage and the quadrants."""
    tokens = sums.get("tokens")
    if not tokens:
        return {}
    metrics = {name: sums[name] / tokens for name in MEANS}
    metrics["mean_token_accuracy"] = sums["top1"] / tokens
    histogram = [sums[f"gamma_bin_{i}"] for i in range(GAMMA_BINS)]
    for name, q in QUARTILES.items():
        metrics[name] = quantile(histogram, q)
    if sums["aux_loss"]:
        metrics["aux_loss"] = sums["aux_loss"] / sums["micro_batches"]
    with_teacher = sums["teacher_tokens"]
    fallbacks = sums["fallback"]
    if with_teacher + fallbacks:
        for name in TEACHER_SHARES:
            metrics[name] = sums[name] / max(with_teacher, 1)
        metrics["fallback_tokens"] = fallbacks
    return metrics


def quantile(histogram: Sequence[float], q: float) -> float:
    """The q-quantile of values in [0, 1] from their histogram, whose bins are centered on 0, 1/(n−1), …, 1.

    >>> quantile([0, 0, 0, 4], 0.5)
    1.0
    """
    threshold = q * sum(histogram)
    below = 0.0
    for i, count in enumerate(histogram):
        below += count
        if count and below >= threshold:
            return i / (len(histogram) - 1)
    return 0.0


def mode_and_prefix(logs: Mapping[str, float]) -> tuple[str | None, str]:
    """Which sums belong to these logs ("train", "eval" or None), and the prefix of their names.

    Only Trainer's own logs get metrics, because every process writes those.
    """
    if "loss" in logs or "train_runtime" in logs:
        return "train", ""
    for name in logs:
        if name.endswith("_runtime"):
            return "eval", name.removesuffix("runtime")
    return None, ""
