"""Every named target with several hyper-parameter values, batches to try them on, and a check for synchronizations."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qsft.targets.registry import make_target
from qsft.targets.view import SideInputs, TopK

TAILS = ("drop", "ghost")

CASES: list[tuple[str, dict]] = [
    ("sft", {}),
    ("dft", {}),
    *[("beyond_log", {"alpha": alpha}) for alpha in (0.0, 0.5, 1.0, 3.0)],
    ("beyond_log", {"alpha": 0.5, "tau": 0.05}),
    ("beyond_log", {"alpha": 1.0, "tau": 0.05, "keep": "below"}),
    *[("profit", {"tau": tau}) for tau in (0.0, 0.05, 1.0)],
    ("eaft", {}),
    ("eaft", {"k": 4, "alpha": 2.0}),
    ("iw_sft", {}),
    ("iw_sft", {"clip": 0.5}),
    ("iw_sft", {"clip": 2.0, "ratio": "raw"}),
    ("cft", {}),
    ("psft", {}),
    ("psft", {"eps": 0.05}),
    *[("label_smoothing", {"lam": lam}) for lam in (0.0, 0.1, 1.0)],
    *[("sft_kl", {"lam": lam, "tail": tail}) for lam in (0.1, 1.0) for tail in TAILS],
    *[("asft", {"lam": lam, "tail": tail}) for lam in (0.05, 0.1) for tail in TAILS],
    *[("gem", {"beta": beta, "link": link}) for beta in (0.7, 1.0, 2.0) for link in ("linear", "logsigmoid")],
    *[("kd", {"tail": tail}) for tail in TAILS],
    ("kd", {"temperature": 0.5}),
    *[("kd_hybrid", {"c": c, "tail": tail}) for c in (0.2, 1.0) for tail in TAILS],
    ("kd_hybrid", {"temperature": 2.0}),
    *[("target_sft", {"eta": eta, "tail": tail}) for eta in (0.0, 0.2, 0.5, 1.0) for tail in TAILS],
    *[("target_sft", {"eta": eta, "form": "reward"}) for eta in (0.0, 0.5, 2.0)],
    *[("target_sft_mixture", {"c": c, "eta": 0.5, "tail": tail}) for c in (0.3, 1.0) for tail in TAILS],
    *[("target_sft_constant", {"c": c, "eta": 0.5, "tail": tail}) for c in (0.3, 1.0) for tail in TAILS],
]
IDS = [f"{name}-{'-'.join(f'{v}' for v in hparams.values())}" for name, hparams in CASES]


def targets():
    return [make_target(name, **hparams) for name, hparams in CASES]


@dataclass
class Batch:
    logits: Tensor
    labels: Tensor
    teacher: TopK
    side: SideInputs
    full_teacher: Tensor  # the whole distribution the slots were cut from


def make_batch(n=9, v=23, k=5, seed=0, dtype=torch.float64, spread=2.0, ignored=(3,), empty=(5,), vocab_size=None):
    """Random logits with a top-k teacher: slots of row 5 are empty, half of row 4 too, label 3 is ignored."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    logits = spread * draw(n, v)
    labels = torch.randint(v, (n,), generator=g)
    labels[0] = logits[0].argmax()  # one label the student likes
    full = draw(n, v).mul(1.5).log_softmax(-1)
    logps, ids = full.topk(k)
    label_logp = full.gather(-1, labels[:, None])[:, 0]
    if n > 4:
        logps[4, k // 2 :] = float("-inf")
        ids[4, k // 2 :] = ids[4, 0]  # an empty slot that repeats a live id must add nothing
    for row in empty:
        if row < n:
            logps[row] = float("-inf")
    for row in ignored:
        if row < n:
            labels[row] = -100
    student = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[:, None])[:, 0]
    side = SideInputs(
        ref_logp=(student + 0.5 * draw(n)).to(dtype),
        old_logp=(student + 0.3 * draw(n)).to(dtype),
        critical=torch.randint(2, (n,), generator=g),
        document=torch.arange(n) // 4,
        vocab_size=vocab_size,
    )
    teacher = TopK(ids, logps.to(dtype), label_logp.to(dtype))
    return Batch(logits.to(dtype), labels, teacher, side, full.to(dtype))


class FromNumbers(TorchDispatchMode):
    """Notes every tensor that is made from Python numbers: on a GPU each is a copy that waits."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket is torch.ops.aten.lift_fresh:
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))
