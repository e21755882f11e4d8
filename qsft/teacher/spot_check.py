"""Does a cache say what the teacher says, at the position it says it for?

Sampled documents are computed again by the model's own forward, not by the projection that made the cache, and
compared with the cached rows at shifts −1, 0 and +1. In a sound cache the shift 0 has no KL to speak of and the others
do; an off-by-one shows as a table. Every document counts by itself: a few stale ones must not drown in a mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np
import torch
from torch import Tensor, nn

from qsft.targets.view import TopK
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import label_positions
from qsft.teacher.live import evaluating, input_device, own_logits

SHIFTS = (-1, 0, 1)
CONFIDENCE = 0.95
Sampled = tuple[np.ndarray, np.ndarray]  # input_ids and labels of a document


@dataclass(frozen=True)
class Agreement:
    """Cached rows against the live teacher `shift` positions later: mean KL(cached ‖ live), share of equal top-1."""

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
        """How many of the sampled documents are not the teacher's own."""
        return sum(not kl <= tolerance for kl in self.document_kl)

    def is_aligned(self, tolerance: float) -> bool:
        """Whether every sampled document is the teacher's own, and nearer to it at shift 0 than at any other."""
        own = next(row for row in self.table if row.shift == 0)
        others = [row.kl for row in self.table if row.shift != 0 and row.label_tokens]
        return not self.differing(tolerance) and all(own.kl < kl for kl in others)

    @property
    def undetected_share(self) -> float:
        """The share of wrong documents that a sample of this size would have missed with probability 1 − CONFIDENCE."""
        return 1.0 if not self.document_kl else 1 - (1 - CONFIDENCE) ** (1 / len(self.document_kl))


def sample_documents(cache: TeacherCache, count: int, seed: int = 0) -> list[Sampled]:
    """Up to `count` random documents of those the cache keeps whole, from as many shards as possible."""
    rng = np.random.default_rng(seed)
    shards = [shard.sample() for shard in cache.shards]
    drawn = [[shards[i][j] for j in rng.permutation(len(shards[i]))] for i in rng.permutation(len(shards))]
    in_turn = (document for document in chain.from_iterable(zip_longest(*drawn)) if document is not None)
    return [document for document, _ in zip(in_turn, range(count))]


@torch.no_grad()
def compare_with_teacher(cache: TeacherCache, model: nn.Module, documents: Sequence[Sampled]) -> SpotCheck:
    """The cached rows of `documents` against the model's own logits, over label positions that exist when shifted."""
    found: dict[int, list[tuple[Tensor, Tensor]]] = {shift: [] for shift in SHIFTS}
    for input_ids, labels in documents:
        cached, positions = cache.lookup(input_ids, labels), label_positions(labels)
        tokens = torch.from_numpy(input_ids.astype(np.int64))[None].to(input_device(model))
        with evaluating(model):
            logits = own_logits(model, {"input_ids": tokens}).cpu()
        for shift in SHIFTS:
            inside = (positions + shift >= 1) & (positions + shift < len(input_ids))
            predicting = torch.from_numpy(positions[inside] + shift - 1)
            found[shift].append(_compare(logits[predicting].log_softmax(dim=-1), cached[torch.from_numpy(inside)]))
    document_kl = [float(kl.mean()) for kl, _ in found[0]]
    return SpotCheck([_agreement(shift, *map(torch.cat, zip(*pairs))) for shift, pairs in found.items()], document_kl)


def _compare(logps: Tensor, cached: TopK) -> tuple[Tensor, Tensor]:
    """Per row the KL, with everything outside the slots as one more outcome, and whether the top-1 is the same."""
    slots = cached.to(logps.device, torch.float64)
    live = logps.double().gather(-1, slots.ids)
    mass, live_mass = slots.logps.exp(), torch.where(slots.live, live.exp(), 0.0)
    inside = torch.where(slots.live, mass * (slots.logps - live), 0.0).sum(dim=-1)
    tail, live_tail = ((1 - m.sum(dim=-1)).clamp(min=1e-9) for m in (mass, live_mass))
    return inside + tail * (tail / live_tail).log(), logps.argmax(dim=-1) == slots.ids[:, 0]


def _agreement(shift: int, kl: Tensor, same: Tensor) -> Agreement:
    count = max(len(kl), 1)
    return Agreement(shift, float(kl.sum()) / count, float(same.sum()) / count, len(kl))
