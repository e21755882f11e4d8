"""Spot checks of a cache: whether sampled documents agree with the teacher.

`compare_with_teacher` computes them again with the model's own forward, not with the projection that made the cache,
and compares them with the cached log-probs at shifts −1, 0 and +1: in a correct cache the KL is nearly 0 at shift 0
only. Every document counts by itself, so a few wrong ones do not disappear in a mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from qsft.inference.loading import input_device
from qsft.losses.evaluation_mode import evaluating
from qsft.targets.view import TopK
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import label_positions
from qsft.teacher.log_probs import own_logits

SHIFTS = (-1, 0, 1)
CONFIDENCE = 0.95
Sampled = tuple[np.ndarray, np.ndarray]  # input_ids and labels of a document


class Agreement(NamedTuple):
    """Cached log-probs against the teacher's `shift` positions later: mean KL, share of equal likeliest tokens."""

    shift: int
    kl: float
    top1: float
    label_tokens: int


@dataclass(frozen=True)
class SpotCheck:
    """One Agreement per shift, and the mean KL of every sampled document at shift 0."""

    table: list[Agreement]
    document_kl: list[float]

    def differing(self, tolerance: float) -> int:
        """How many sampled documents differ from the teacher by more than `tolerance`, or by NaN."""
        return sum(not kl <= tolerance for kl in self.document_kl)

    def is_aligned(self, tolerance: float) -> bool:
        """Whether every sampled document agrees with the teacher, and better at shift 0 than at any other."""
        unshifted = next(agreement for agreement in self.table if agreement.shift == 0)
        shifted = [agreement.kl for agreement in self.table if agreement.shift != 0 and agreement.label_tokens]
        return not self.differing(tolerance) and all(unshifted.kl < kl for kl in shifted)

    @property
    def undetected_share(self) -> float:
        """The share of wrong documents that a sample of this size would have missed with probability 1 − CONFIDENCE."""
        return 1.0 if not self.document_kl else 1 - (1 - CONFIDENCE) ** (1 / len(self.document_kl))


def sample_documents(cache: TeacherCache, count: int, seed: int = 0) -> list[Sampled]:
    """Up to `count` random documents of those the cache keeps complete, from as many shards as possible."""
    rng = np.random.default_rng(seed)
    shuffled_shards = []
    for shard in rng.permutation(len(cache.shards)):
        sample = cache.shards[shard].sample()
        shuffled_shards.append([sample[i] for i in rng.permutation(len(sample))])
    one_of_each_in_turn = chain.from_iterable(zip_longest(*shuffled_shards))
    return list(islice(filter(None, one_of_each_in_turn), count))


@torch.no_grad()
def compare_with_teacher(cache: TeacherCache, model: nn.Module, documents: Sequence[Sampled]) -> SpotCheck:
    """Compare cached log-probs with the model's own logits, at the label positions that exist when shifted."""
    found: dict[int, list[tuple[Tensor, Tensor]]] = {shift: [] for shift in SHIFTS}
    for input_ids, labels in documents:
        cached = cache.lookup(input_ids, labels)
        positions = label_positions(labels)
        tokens = torch.from_numpy(input_ids.astype(np.int64))[None].to(input_device(model))
        with evaluating(model):
            logits = own_logits(model, {"input_ids": tokens}).cpu()
        for shift in SHIFTS:
            inside = (positions + shift >= 1) & (positions + shift < len(input_ids))
            predicting = torch.from_numpy(positions[inside] + shift - 1)
            found[shift].append(_compare(logits[predicting].log_softmax(dim=-1), cached[torch.from_numpy(inside)]))
    table = []
    for shift, pairs in found.items():
        kl = torch.cat([pair[0] for pair in pairs])
        same_top1 = torch.cat([pair[1] for pair in pairs])
        count = max(len(kl), 1)
        table.append(Agreement(shift, float(kl.sum()) / count, float(same_top1.sum()) / count, len(kl)))
    return SpotCheck(table, [float(kl.mean()) for kl, _ in found[0]])


def _compare(logps: Tensor, cached: TopK) -> tuple[Tensor, Tensor]:
    """Per position the KL, with the tail as one more outcome, and whether the likeliest token is the same."""
    slots = cached.to(logps.device, torch.float64)
    teacher_logps = logps.double().gather(-1, slots.ids)
    mass = slots.logps.exp()
    teacher_mass = torch.where(slots.live, teacher_logps.exp(), 0.0)
    inside = torch.where(slots.live, mass * (slots.logps - teacher_logps), 0.0).sum(dim=-1)
    tail = (1 - mass.sum(dim=-1)).clamp(min=1e-9)
    teacher_tail = (1 - teacher_mass.sum(dim=-1)).clamp(min=1e-9)
    kl = inside + tail * (tail / teacher_tail).log()
    return kl, logps.argmax(dim=-1) == slots.ids[:, 0]
