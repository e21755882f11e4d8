"""From sums to metrics: sums stay on the device between two logs, then one reduction over processes and one copy.

Sums, not means of means: a metric is exact whatever the batch sizes, accumulation and number of processes.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from qsft.losses.sums import GAMMA_BINS, QUADRANTS, SUM_NAMES

Reduce = Callable[[Tensor], Tensor]  # over processes
SEEN = "seen"  # tokens the model read, prompts included: TRL's num_tokens
NAMES = (*SUM_NAMES, SEEN, "aux_loss", "micro_batches")
MEANS = ("label_loss", "residual_loss", "nll", "entropy", "gamma")
TEACHER_SHARES = ("support_mass", "teacher_tail", "label_in_topk", "teacher_disagrees", *QUADRANTS)
QUARTILES = {"gamma_q25": 0.25, "gamma_q50": 0.5, "gamma_q75": 0.75}


class MetricSums:
    """The sums under NAMES since the last reset."""

    total: Tensor | None = None

    def add(self, sums: Tensor, seen: Tensor | int, aux_loss: Tensor | None = None) -> None:
        """Add one micro-batch; nothing is copied to the host."""
        # float32 counts stop counting at 2^24 tokens; Apple's GPUs have no float64.
        dtype = torch.float32 if sums.device.type == "mps" else torch.float64
        # Filled, not copied: a tensor made from a number would wait for the device.
        parts = (seen, 0 if aux_loss is None else aux_loss.detach(), 1)
        rest = [part if isinstance(part, Tensor) else sums.new_full((), part) for part in parts]
        batch = torch.cat([sums.detach().to(dtype), *(part.to(sums.device, dtype).view(1) for part in rest)])
        self.total = batch if self.total is None else self.total + batch

    def take(self, reduce: Reduce) -> dict[str, float]:
        """The sums over all processes by name, then start again from zero; empty when nothing was added."""
        if self.total is None:
            return {}
        values = reduce(self.total).tolist()
        self.reset()
        return dict(zip(NAMES, values, strict=True))

    def take_seen(self, reduce: Reduce) -> int:
        """The tokens seen over all processes since they were last taken; the other sums stay."""
        if self.total is None:
            return 0
        seen = int(reduce(self.total[NAMES.index(SEEN)].clone()))
        self.total[NAMES.index(SEEN)] = 0
        return seen

    def reset(self) -> None:
        self.total = None


def metrics_of(sums: Mapping[str, float]) -> dict[str, float]:
    """What is logged: means per label token, γ's quartiles, and with a teacher its coverage and the quadrants."""
    tokens = sums.get("tokens")
    if not tokens:
        return {}
    metrics = {name: sums[name] / tokens for name in MEANS} | {"mean_token_accuracy": sums["top1"] / tokens}
    histogram = [sums[f"gamma_bin_{i}"] for i in range(GAMMA_BINS)]
    metrics |= {name: quantile(histogram, q) for name, q in QUARTILES.items()}
    if sums["aux_loss"]:
        metrics["aux_loss"] = sums["aux_loss"] / sums["micro_batches"]
    taught, fallbacks = sums["teacher_tokens"], sums["fallback"]
    if taught + fallbacks:
        metrics |= {name: sums[name] / max(taught, 1) for name in TEACHER_SHARES} | {"fallback_tokens": fallbacks}
    return metrics


def quantile(histogram: Sequence[float], q: float) -> float:
    """The q-quantile of values in [0, 1] from their histogram, whose bins are centred on 0, 1/(n−1), …, 1.

    >>> quantile([0, 0, 0, 4], 0.5)
    1.0
    """
    below, wanted = 0.0, q * sum(histogram)
    for i, count in enumerate(histogram):
        below += count
        if count and below >= wanted:
            return i / (len(histogram) - 1)
    return 0.0


def belongs_to(logs: Mapping[str, float]) -> tuple[str | None, str]:
    """(mode, prefix) of the sums that belong into these logs: only into Trainer's own, which every process writes."""
    if "loss" in logs or "train_runtime" in logs:  # a step, and the end of a run: the steps since the last log
        return "train", ""
    prefix = next((name.removesuffix("runtime") for name in logs if name.endswith("_runtime")), "")
    return ("eval" if prefix else None), prefix
