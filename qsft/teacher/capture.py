"""The teacher's distributions at label positions: backbone, then the head in chunks; full logits are never kept."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qsft.losses.fused import tokens_per_chunk
from qsft.losses.head import base_causal_lm, gathered_head
from qsft.losses.reference import IGNORED
from qsft.targets.view import Full, TopK


@torch.no_grad()
def teacher_rows(
    model: nn.Module,
    input_ids: Int[Tensor, "B T"],
    labels: Int[Tensor, "B T"],
    attention_mask: Int[Tensor, "B T"] | None = None,
    position_ids: Int[Tensor, "B T"] | None = None,
    k: int | None = None,
) -> TopK | Full:
    """The teacher at every label position (t ≥ 1, row after row): its top-k, or everything when k is None.

    Log-probs are float32, normalised over the full vocabulary at temperature 1.
    """
    hidden, labels = label_states(model, input_ids, labels, attention_mask, position_ids)
    pieces = [_piece(logps, labels[rows], k) for rows, logps in log_probs(model, hidden)]
    columns = [torch.cat(column) for column in zip(*pieces)]
    return Full(*columns) if k is None else TopK(*columns)


def label_states(
    model: nn.Module,
    input_ids: Int[Tensor, "B T"],
    labels: Int[Tensor, "B T"],
    attention_mask: Int[Tensor, "B T"] | None,
    position_ids: Int[Tensor, "B T"] | None,
) -> tuple[Float[Tensor, "N H"], Int[Tensor, " N"]]:
    """The hidden states that predict a label, and those labels: the state at t−1 predicts token t."""
    backbone = base_causal_lm(model).base_model
    optional = {"attention_mask": attention_mask, "position_ids": position_ids}  # not every backbone takes both
    given = {name: value for name, value in optional.items() if value is not None}
    outputs = backbone(input_ids=input_ids, use_cache=False, **given)
    states, labels = outputs.last_hidden_state[:, :-1], labels[:, 1:].to(outputs.last_hidden_state.device)
    keep = labels != IGNORED
    return states[keep], labels[keep]


def log_probs(model: nn.Module, hidden: Float[Tensor, "N H"]) -> Iterator[tuple[slice, Float[Tensor, "n V"]]]:
    """Log-probs of all hidden states, a chunk of rows at a time (one empty chunk when there are none)."""
    with gathered_head(model) as head:
        hidden = hidden.to(head.weight.device)
        chunk = tokens_per_chunk(len(hidden), len(head.weight), torch.float32)
        for start in range(0, max(len(hidden), 1), max(chunk, 1)):
            rows = slice(start, start + chunk)
            logits = head.logits(hidden[rows]).float()
            yield rows, logits.sub_(logits.logsumexp(dim=-1, keepdim=True))


def _piece(logps: Float[Tensor, "n V"], labels: Int[Tensor, " n"], k: int | None) -> tuple[Tensor, ...]:
    label_logp = logps.gather(-1, labels.to(logps.device)[:, None])[:, 0]
    if k is None:
        return logps, label_logp
    top = logps.topk(k, dim=-1)
    return top.indices.to(torch.int32), top.values, label_logp
