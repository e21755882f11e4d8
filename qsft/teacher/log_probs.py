"""The log-probs of a causal LM at the label positions of a batch, for a capture and for a live teacher.

The backbone runs first, then the head one tile of logits at a time: the full logits never exist, nor does a gradient.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from qsft.losses.head import Head, base_causal_lm, label_states, output_head
from qsft.losses.projection import tokens_per_chunk
from qsft.targets.view import Full, TopK

STRIPES = 16  # top_k first looks at the maxima over this many logits
WIDENED_ENTRIES = 8192  # entries of a bf16 head that are converted to float32 at a time on a CPU
CHECKED_TOKENS = 8


@torch.no_grad()
def teacher_log_probs(model: nn.Module, k: int | None, **batch: Any) -> TopK | Full:
    """Return the teacher's log-probs at every label position of `batch`, sequence after sequence.

    The k likeliest tokens of a position, or all of them with k = None. Log-probs are float32, normalized over the full
    vocabulary at temperature 1. `batch` holds the arguments of `predicting_states`.
    """
    hidden, labels = predicting_states(model, **batch)
    tiles = ((tile, labels[positions]) for positions, tile in logit_tiles(model, hidden))
    if k is None:
        columns = zip(*(_all_log_probs(tile, tile_labels) for tile, tile_labels in tiles))
        return Full(*map(torch.cat, columns))
    columns = zip(*(_top_k_log_probs(tile, tile_labels, k) for tile, tile_labels in tiles))
    return TopK(*map(torch.cat, columns))


@torch.no_grad()
def check_teacher_head(model: nn.Module, **inputs: Tensor | None) -> None:
    """Raise ValueError unless our log-probs are those of the model's own logits, on the first tokens of a batch.

    Architectures scale, cap or transform their logits in their own ways; an unknown way would give wrong log-probs
    silently.
    """
    first_tokens = {name: value[:1, :CHECKED_TOKENS] for name, value in inputs.items() if value is not None}
    input_ids = first_tokens["input_ids"]
    if input_ids.shape[1] < 2:
        return
    name = type(base_causal_lm(model)).__name__
    with torch.autocast(input_ids.device.type, enabled=False):  # autocast would round the model's product, not ours
        ours: Any = teacher_log_probs(model, None, **first_tokens, labels=input_ids)
        logits = own_logits(model, first_tokens)[:-1].to(ours.logps.device)
    if not torch.isfinite(logits.amax(-1)).all():  # entries of minus infinity are tokens that the model excludes
        raise ValueError(
            f"the teacher {name} returned NaN or infinity for the first tokens of the data. Its weights may be "
            "damaged, or its dtype too narrow: try float32 or bfloat16."
        )
    if not _agree(logits, ours.logps, torch.finfo(output_head(model).weight.dtype).eps):
        raise ValueError(
            f"qsft does not know how {name} turns hidden states into logits: its own logits differ from the product of "
            "its last states and its head, so its log-probs would be wrong. Use another teacher, and report the model "
            "and the version of transformers."
        )


def own_logits(model: nn.Module, inputs: dict[str, Tensor]) -> Float[Tensor, "T V"]:
    """The float32 logits of a batch of one sequence, from the model's own forward."""
    causal_lm: Any = base_causal_lm(model)
    # accelerate wraps the forward of a model that it trains in half precision, and does not unwrap it afterwards.
    forward = getattr(causal_lm, "_original_forward", causal_lm)
    outputs = forward(**inputs, use_cache=False)
    return outputs.logits[0].float()  # type: ignore[no-any-return]


def head_size(model: nn.Module) -> int:
    """The number of vocabulary entries of the model's head."""
    causal_lm: Any = base_causal_lm(model)
    return len(causal_lm.get_output_embeddings().weight)


def _agree(logits: Float[Tensor, "n V"], logps: Float[Tensor, "n W"], epsilon: float) -> bool:
    """Whether `logps` are those of `logits`, up to 1e-3 of how much the logits vary over the vocabulary.

    bf16 and fp16 models round their own logits (by `epsilon`), not ours, so there the difference may be larger.
    """
    possible = logits > -torch.inf
    if logits.shape != logps.shape or not torch.equal(possible, logps > -torch.inf):
        return False
    difference = torch.where(possible, logits.log_softmax(dim=-1) - logps, 0.0).norm()
    logits = torch.where(possible, logits, 0.0)
    spread = (logits - logits.mean(dim=-1, keepdim=True)).norm()
    return bool(difference <= 1e-3 * spread + 4 * epsilon * logits.norm())


def predicting_states(
    model: nn.Module, labels: Int[Tensor, "B T"], **inputs: Int[Tensor, "..."] | None
) -> tuple[Float[Tensor, "N H"], Int[Tensor, " N"]]:
    """Return the hidden states that predict a label, and those labels: the state at t−1 predicts token t.

    Args:
        inputs: input_ids; attention_mask, position_ids (not every backbone takes both) and label_positions where given.
    """
    given = {name: value for name, value in inputs.items() if value is not None}
    causal_lm: Any = base_causal_lm(model)
    states, tokens = label_states(causal_lm, (), given, labels)
    # With device_map the backbone may end on another device than the head.
    device = causal_lm.get_output_embeddings().weight.device
    return states.to(device), tokens.labels.to(device)


def logit_tiles(model: nn.Module, hidden: Float[Tensor, "N H"]) -> Iterator[tuple[slice, Float[Tensor, "n V"]]]:
    """Yield the float32 logits of all states, some states at a time, in one tile that the next ones overwrite.

    No states give one empty tile.
    """
    head = output_head(model)
    chunk = tokens_per_chunk(len(hidden), len(head.weight), torch.float32, hidden.device.type)
    tile = hidden.new_empty(min(chunk, len(hidden)), len(head.weight), dtype=torch.float32)
    for start in range(0, max(len(hidden), 1), chunk):
        states = hidden[start : start + chunk].to(head.weight.dtype)
        yield slice(start, start + chunk), _project(states, head, tile[: len(states)])


def _project(states: Tensor, head: Head, out: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
    """The logits in float32. A CPU would round products of bf16, so there a part of the head is widened at a time."""
    if states.device.type != "cpu" or states.dtype == torch.float32:
        return head.projection(states, head.weight, head.bias, out)
    wide = states.float()
    for start in range(0, len(head.weight), WIDENED_ENTRIES):
        entries = slice(start, start + WIDENED_ENTRIES)
        bias = None if head.bias is None else head.bias[entries].float()
        head.projection(wide, head.weight[entries].float(), bias, out[:, entries])
    return out


def top_k(logits: Float[Tensor, "n V"], k: int) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """The k largest logits and their ids, as `torch.topk`, in a fraction of its time for a large vocabulary.

    Arranged in STRIPES lines, the k largest logits lie in the k columns with the largest maxima, which are found in the
    same way. Only those columns are sorted, and the few logits beyond the last complete column.
    """
    n, size = logits.shape
    if size < 4 * k * STRIPES:
        return logits.topk(k, dim=-1)
    width = size // STRIPES
    body = width * STRIPES
    _, columns = top_k(logits[:, :body].view(n, STRIPES, width).amax(dim=1), k)
    ids = (columns[:, :, None] + torch.arange(0, body, width, device=logits.device)).view(n, -1)
    ids = torch.cat([ids, torch.arange(body, size, device=logits.device).expand(n, -1)], dim=1)
    best = logits.gather(1, ids).topk(k, dim=-1)
    return best.values, ids.gather(1, best.indices)


def _top_k_log_probs(
    tile: Float[Tensor, "n V"], labels: Int[Tensor, " n"], k: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """ids, log-probs, the label's log-prob and the log of the tail mass, of one tile, which is overwritten.

    The tail is summed with the slots masked out: 1 − Σp would lose a small tail to rounding.
    """
    values, ids = top_k(tile, min(k, tile.shape[-1]))
    label = tile.gather(-1, labels[:, None])
    p = torch.softmax(tile, dim=-1, out=tile)
    lse = values[:, :1] - p.gather(-1, ids[:, :1]).log_()  # p_max = exp(z_max − lse)
    log_tail = p.scatter_(-1, ids, 0.0).sum(dim=-1).log_()
    return ids.to(torch.int32), values - lse, (label - lse)[:, 0], log_tail


def _all_log_probs(tile: Float[Tensor, "n V"], labels: Int[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    logps = tile.log_softmax(dim=-1)
    return logps, logps.gather(-1, labels[:, None])[:, 0]
