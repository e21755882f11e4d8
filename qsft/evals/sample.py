"""Draw responses with transformers: `Sampler(model, tokenizer, sampling).sample(requests)` yields them as they finish.

Prompts are sorted by length and prefilled once for all their samples; finished rows make room for waiting ones.
A sample's next token is argmax(logits + g) with g a Gumbel variable hashed from (seed, problem, sample, step, token):
the Gumbel-max trick draws from softmax(logits), and no generator's state exists that a batch could advance.
Caches of different lengths are joined by padding the shorter on the left, where the mask hides it; a model whose cache
is not a plain one (sliding windows, states) finishes its batch before the next one begins.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TopKLogitsWarper, TopPLogitsWarper
from transformers.cache_utils import DynamicLayer

from qsft.evals.protocol import TEXT_CHECK, Generation, Request, Sampling, Stops, context_of, plan, row_key
from qsft.losses.evaluation_mode import evaluating

MOST_ROWS = 512
CPU_MEMORY = 2 << 30
ROOM = 0.875  # rows leave and join together, once an eighth is finished: each time copies the whole cache

# splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit integers
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


class Sampler:
    """Draws responses from a causal language model in batches.

    batch_size: rows at most; None is what the KV cache leaves room for.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        sampling: Sampling,
        *,
        batch_size: int | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} holds no row; it must be 1 or more.")
        self.model, self.tokenizer, self.sampling, self.batch_size = model, tokenizer, sampling, batch_size
        self.context = context_of(model.config)
        self.stops = Stops(tokenizer, sampling.stop, model)

    def sample(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """The responses, in the order in which they finish; where memory does not suffice, in smaller batches."""
        rows = plan(requests, self.tokenizer, self.sampling.max_new_tokens, self.context)
        with evaluating(self.model):
            while rows:
                size, done = self.batch_size or self._room(rows[0]), set()
                try:
                    for generation in self._decode(rows, size):
                        done.add(generation.key)
                        yield generation
                except torch.OutOfMemoryError:
                    if min(size, len(rows)) < 2:
                        raise
                    self.batch_size = (min(size, len(rows)) + 1) // 2
                    torch.cuda.empty_cache()
                rows = [row for row in rows if row.key not in done]

    # Not inference_mode: a generator must not leave it switched on in its caller between two responses.
    def _decode(self, rows: Sequence[Request], size: int) -> Iterator[Generation]:
        batch, waiting = Batch(self), deque(rows)
        while waiting or batch.unfinished:
            with torch.no_grad():
                if joining := min(batch.takes(size), len(waiting)):
                    batch.join([waiting.popleft() for _ in range(joining)])
                finished = batch.step()
            yield from finished

    def choose(
        self, logits: Float[Tensor, "B V"], keys: Int[Tensor, " B"], steps: Int[Tensor, " B"]
    ) -> Int[Tensor, " B"]:
        """The next token of each row: argmax of the tempered, truncated logits plus the row's own noise."""
        how = self.sampling
        if how.temperature == 0:
            return logits.argmax(-1)
        scores = logits.float() / how.temperature
        if how.top_k:
            scores = TopKLogitsWarper(how.top_k)(None, scores)
        if how.top_p < 1:
            scores = TopPLogitsWarper(how.top_p)(None, scores)
        return (scores + gumbel(keys, steps, scores.shape[-1])).argmax(-1)

    def _room(self, row: Request) -> int:
        """Rows that fit into half of the free memory: KV cache at full length, and the noise over the vocabulary."""
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        length = len(row.ids) + (row.limit or 0)
        cache = 2 * config.num_hidden_layers * heads * width * length * self.model.dtype.itemsize
        free = torch.cuda.mem_get_info(self.model.device)[0] // 2 if self.model.device.type == "cuda" else CPU_MEMORY
        return int(max(1, min(MOST_ROWS, free // (cache + 48 * config.vocab_size))))


class Batch:
    """The rows that are decoded together; `rows`, `written` and the tensors have one entry per row, in one order."""

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self.rows: list[Request] = []
        self.written: list[list[int]] = []
        self.cache: Any = None
        self.tensors: dict[str, Tensor] = {}

    @property
    def unfinished(self) -> int:
        return int(self.tensors["running"].sum()) if self.rows else 0

    def takes(self, size: int) -> int:
        """How many waiting rows may join now, in a batch of at most `size`."""
        unfinished = self.unfinished
        ready = not unfinished or (unfinished <= ROOM * size and _is_plain(self.cache))
        return size - unfinished if ready else 0

    def join(self, rows: Sequence[Request]) -> None:
        self.drop_finished()
        cache, tensors = self._prefill(rows)
        if not self.rows:
            self.cache, self.tensors = cache, tensors
        else:
            width = max(self.tensors["mask"].shape[1], tensors["mask"].shape[1])
            for ours, theirs in zip(self.cache.layers, cache.layers, strict=True):
                for name in ("keys", "values"):
                    parts = [getattr(layer, name) for layer in (ours, theirs)]
                    setattr(ours, name, torch.cat([pad(part, (0, 0, width - part.shape[2], 0)) for part in parts]))
            for batch in (self.tensors, tensors):
                batch["mask"] = pad(batch["mask"], (width - batch["mask"].shape[1], 0))
            self.tensors = {name: torch.cat([self.tensors[name], tensors[name]]) for name in tensors}
        self.rows += rows
        self.written += [[] for _ in rows]

    def _prefill(self, rows: Sequence[Request]) -> tuple[Any, dict[str, Tensor]]:
        """Cache and tensors after the prompts; equal prompts are computed once and copied to all their samples."""
        device = self.sampler.model.device
        prompts = list(dict.fromkeys(row.ids for row in rows))
        which = {prompt: index for index, prompt in enumerate(prompts)}
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts]).to(device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]).to(device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        out = self.sampler.model(**inputs, use_cache=True, logits_to_keep=1)
        spread = torch.tensor([which[row.ids] for row in rows], device=device)
        out.past_key_values.batch_select_indices(spread)
        seed = self.sampler.sampling.seed
        return out.past_key_values, {
            "keys": torch.tensor([row_key(seed, *row.key) for row in rows], device=device),
            "limits": torch.tensor([row.limit for row in rows], device=device),
            "steps": torch.zeros(len(rows), dtype=torch.long, device=device),
            "running": torch.ones(len(rows), dtype=torch.bool, device=device),
            "positions": positions[spread, -1],
            "mask": mask[spread],
            "logits": out.logits[:, -1][spread],
        }

    def step(self) -> list[Generation]:
        """Write a token to every row; the responses that ended with it."""
        now = self.tensors
        tokens = self.sampler.choose(now["logits"], now["keys"], now["steps"])
        now["steps"] = now["steps"] + 1
        for ids, token in zip(self.written, tokens.tolist()):
            ids.append(token)
        stopped = torch.isin(tokens, torch.tensor(self.sampler.stops.ids, device=tokens.device, dtype=tokens.dtype))
        ended = (stopped | (now["steps"] >= now["limits"])) & now["running"]
        places = sorted({*ended.nonzero().flatten().tolist(), *self._at_a_stop_string()})
        now["running"][places] = False
        drawn = [(self.rows[place], self.written[place]) for place in places]
        finished = [Generation(row.problem, row.sample, *self.sampler.stops.cut(ids), ids) for row, ids in drawn]
        if self.unfinished:
            self._advance(tokens[self.drop_finished(ROOM)])
        else:
            self.rows, self.written = [], []
        return finished

    def _at_a_stop_string(self) -> list[int]:
        """The running rows that wrote a stop string; looked for now and then, and cut exactly afterwards."""
        stops = self.sampler.stops
        if not stops.texts:
            return []
        running = self.tensors["running"].tolist()
        due = [i for i, ids in enumerate(self.written) if running[i] and len(ids) % TEXT_CHECK == 0]
        return [place for place in due if stops.holds(self.written[place][-stops.window :])]

    def drop_finished(self, room: float = 1.0) -> Int[Tensor, " B"]:
        """The places of the rows that stay: the unfinished, or all while more than `room` of them are."""
        if not self.rows:
            return torch.empty(0, dtype=torch.long)
        running = self.tensors["running"]
        keep = running.nonzero().flatten()
        if len(keep) == len(running) or len(keep) > room * len(running):
            return torch.arange(len(running), device=running.device)
        self.cache.batch_select_indices(keep)
        self.tensors = {name: value[keep] for name, value in self.tensors.items()}
        kept = keep.tolist()
        self.rows, self.written = [self.rows[i] for i in kept], [self.written[i] for i in kept]
        if _is_plain(self.cache):  # columns that are padding in every row that is left
            start = int(self.tensors["mask"].any(dim=0).int().argmax())
            self.tensors["mask"] = self.tensors["mask"][:, start:]
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, start:], layer.values[:, :, start:]
        return keep

    def _advance(self, tokens: Int[Tensor, " B"]) -> None:
        now = self.tensors
        now["positions"] = now["positions"] + 1
        now["mask"] = pad(now["mask"], (0, 1), value=1)
        inputs = {"input_ids": tokens[:, None], "attention_mask": now["mask"], "past_key_values": self.cache}
        out = self.sampler.model(**inputs, position_ids=now["positions"][:, None], use_cache=True, logits_to_keep=1)
        now["logits"] = out.logits[:, -1]


def _is_plain(cache: Any) -> bool:
    """Whether a cache is keys and values of every position and nothing else, so that columns can be added or cut."""
    return all(type(layer) is DynamicLayer for layer in getattr(cache, "layers", [None]))


def gumbel(keys: Int[Tensor, " B"], steps: Int[Tensor, " B"], vocabulary: int) -> Float[Tensor, "B V"]:
    """Standard Gumbel noise of every row and token at the row's step: g = −log(−log(1 − v)), v uniform by the hash."""
    tokens = torch.arange(1, vocabulary + 1, device=keys.device)
    moment = _mix(keys + (steps + 1) * MIX_1)
    hashed = _mix(moment[:, None] + tokens * GOLDEN)
    # 31 bits, small v with full precision: that is the tail where an unlikely token wins.
    uniform = ((hashed & 0x7FFFFFFF).float() + 0.5) * 2.0**-31
    return -torch.log(-torch.log1p(-uniform.clamp_(max=1 - 2.0**-24)))


def _mix(state: Int[Tensor, "*N"]) -> Int[Tensor, "*N"]:
    """splitmix64's finaliser; integer products wrap as in C."""
    state = (state ^ _shift(state, 30)) * MIX_1
    state = (state ^ _shift(state, 27)) * MIX_2
    return state ^ _shift(state, 31)


def _shift(state: Int[Tensor, "*N"], bits: int) -> Int[Tensor, "*N"]:
    """Logical shift to the right; torch shifts the sign in."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
