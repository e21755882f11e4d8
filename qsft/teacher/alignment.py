"""Does a cache say what the teacher says, at the position it says it for?

Sampled documents are computed again and compared with the cached rows at shifts −1, 0 and +1. In a sound cache the
shift 0 has no KL to speak of and the others do; an off-by-one shows as a table.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from qsft.targets.view import TopK
from qsft.teacher.capture import input_device, logit_tiles, predicting_states
from qsft.teacher.format import TeacherCache, label_positions

SHIFTS = (-1, 0, 1)


@dataclass(frozen=True)
class Agreement:
    """Cached rows against the live teacher `shift` positions later: mean KL(cached ‖ live), share of equal top-1."""

    shift: int
    kl: float
    top1: float
    label_tokens: int


def sample_documents(cache: TeacherCache, count: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Up to `count` random documents of those the cache keeps whole."""
    documents = cache.samples()
    chosen = np.random.default_rng(seed).permutation(len(documents))[:count]
    return [documents[i] for i in chosen]


def compare_with_teacher(
    cache: TeacherCache, model: nn.Module, documents: Sequence[tuple[np.ndarray, np.ndarray]]
) -> list[Agreement]:
    """One Agreement per shift, over all label positions of `documents` for which the shifted position exists."""
    found: dict[int, list[tuple[Tensor, Tensor]]] = {shift: [] for shift in SHIFTS}
    for input_ids, labels in documents:
        cached, positions = cache.lookup(input_ids, labels), label_positions(labels)
        states = _states(model, input_ids)
        for shift in SHIFTS:
            inside = (positions + shift >= 1) & (positions + shift < len(input_ids))
            rows = cached[torch.from_numpy(inside)]
            found[shift].append(_compare(model, states[positions[inside] + shift - 1], rows))
    return [_agreement(shift, *map(torch.cat, zip(*pairs))) for shift, pairs in found.items()]


def aligned(table: Sequence[Agreement], tolerance: float) -> bool:
    """Whether the rows are the teacher's own, and nearer to it at shift 0 than at any other."""
    own = next(row for row in table if row.shift == 0)
    others = [row.kl for row in table if row.shift != 0 and row.label_tokens]
    return own.kl <= tolerance and all(own.kl < kl for kl in others)


@torch.no_grad()
def _states(model: nn.Module, input_ids: np.ndarray) -> Tensor:
    """The state that predicts token t at place t−1, for every token but the first."""
    tokens = torch.from_numpy(input_ids.astype(np.int64))[None].to(input_device(model))
    return predicting_states(model, tokens, tokens)[0]


@torch.no_grad()
def _compare(model: nn.Module, states: Tensor, cached: TopK) -> tuple[Tensor, Tensor]:
    """Per row the KL, with everything outside the slots as one more outcome, and whether the top-1 is the same."""
    kls, same = [], []
    for rows, tile in logit_tiles(model, states):
        logps = tile.log_softmax(dim=-1)
        slots = cached[rows].to(logps.device, torch.float64)
        live = logps.double().gather(-1, slots.ids)
        mass, live_mass = slots.logps.exp(), torch.where(slots.live, live.exp(), 0.0)
        inside = torch.where(slots.live, mass * (slots.logps - live), 0.0).sum(dim=-1)
        tail, live_tail = ((1 - m.sum(dim=-1)).clamp(min=1e-9) for m in (mass, live_mass))
        kls.append((inside + tail * (tail / live_tail).log()).cpu())
        same.append((logps.argmax(dim=-1) == slots.ids[:, 0]).cpu())
    return torch.cat(kls), torch.cat(same)


def _agreement(shift: int, kl: Tensor, same: Tensor) -> Agreement:
    count = max(len(kl), 1)
    return Agreement(shift, float(kl.sum()) / count, float(same.sum()) / count, len(kl))
