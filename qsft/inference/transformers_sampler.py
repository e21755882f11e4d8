"""Sample responses with transformers; neither batching nor order changes a sample.

Prompts are sorted by length and prefilled once for all their samples. Finished sequences leave the batch and waiting
requests take their place. Caches of different lengths are joined by padding the shorter one on the left, where the
attention mask hides it. A model whose cache is not a plain one (sliding windows, recurrent states) finishes its batch
before the next one begins.
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

from qsft.inference.loading import context_length
from qsft.inference.noise import gumbel
from qsft.inference.sampling import Generation, Request, Sampling, plan_requests, sample_key
from qsft.inference.stop_conditions import CHECK_EVERY, StopConditions
from qsft.losses.evaluation_mode import evaluating

MAX_BATCH_SIZE = 512
CPU_MEMORY = 2 << 30  # bytes for the KV cache and the noise on a CPU
# The batch is compacted and refilled once an eighth of it is finished: each time copies the whole cache.
REFILL_BELOW = 0.875
NOT_FINITE = -1  # instead of a token whose logits are NaN or infinite
NOISE_BYTES = 48  # per vocabulary entry and sequence, while a token is drawn


class TransformersSampler:
    """Samples responses from a causal language model in batches.

    Args:
        batch_size: sequences at once; None is as many as the memory for the KV cache allows.
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
            raise ValueError(f"batch_size must be at least 1, got {batch_size}.")
        self.model = model
        self.tokenizer = tokenizer
        self.sampling = sampling
        self.batch_size = batch_size
        self.context_length = context_length(model.config)
        self.stops = StopConditions(tokenizer, sampling.stop, model)

    def sample(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """Yield the responses in the order in which they finish; on out-of-memory errors, with smaller batches."""
        waiting = plan_requests(requests, self.sampling.max_new_tokens, self.context_length)
        with evaluating(self.model):
            while waiting:
                batch_size = self.batch_size or self._default_batch_size(waiting[0])
                finished = set()
                try:
                    for generation in self._decode(waiting, batch_size):
                        finished.add(generation.key)
                        yield generation
                except torch.OutOfMemoryError:
                    used = min(batch_size, len(waiting))
                    if used < 2:
                        raise
                    self.batch_size = (used + 1) // 2
                    torch.cuda.empty_cache()
                waiting = [request for request in waiting if request.key not in finished]

    # no_grad inside, not inference_mode around: a generator must not leave a mode on in its caller between yields.
    def _decode(self, requests: Sequence[Request], batch_size: int) -> Iterator[Generation]:
        batch = _Batch(self)
        waiting = deque(requests)
        while waiting or batch.num_running:
            with torch.no_grad():
                joining = min(batch.free_places(batch_size), len(waiting))
                if joining:
                    batch.join([waiting.popleft() for _ in range(joining)])
                finished = batch.step()
            yield from finished

    def choose(
        self, logits: Float[Tensor, "B V"], keys: Int[Tensor, " B"], steps: Int[Tensor, " B"]
    ) -> Int[Tensor, " B"]:
        """The next token of each sequence: argmax of the tempered, truncated logits plus the sample's own noise."""
        sampling = self.sampling
        if sampling.temperature == 0:
            return logits.argmax(-1)
        scores = logits.float() / sampling.temperature
        if sampling.top_k:
            scores = TopKLogitsWarper(sampling.top_k)(None, scores)
        if sampling.top_p < 1:
            scores = TopPLogitsWarper(sampling.top_p)(None, scores)
        return (scores + gumbel(keys, steps, scores.shape[-1])).argmax(-1)

    def _default_batch_size(self, longest: Request) -> int:
        """Sequences that fit into half of the free memory: KV cache at full length, and noise over the vocabulary."""
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        length = len(longest.ids) + (longest.max_new_tokens or 0)
        cache_bytes = 2 * config.num_hidden_layers * heads * head_size * length * self.model.dtype.itemsize
        if self.model.device.type == "cuda":
            memory = torch.cuda.mem_get_info(self.model.device)[0] // 2
        else:
            memory = CPU_MEMORY
        fitting = memory // (cache_bytes + NOISE_BYTES * config.vocab_size)
        return int(max(1, min(MAX_BATCH_SIZE, fitting)))


class _Batch:
    """The sequences that are decoded together.

    `requests`, `written` and every entry of `state` have one element per sequence, in the same order.
    """

    def __init__(self, sampler: TransformersSampler) -> None:
        self.sampler = sampler
        self.requests: list[Request] = []
        self.written: list[list[int]] = []  # the tokens generated so far
        self.cache: Any = None
        self.state: dict[str, Tensor] = {}

    @property
    def num_running(self) -> int:
        return int(self.state["running"].sum()) if self.requests else 0

    def free_places(self, batch_size: int) -> int:
        """How many waiting requests may join now."""
        running = self.num_running
        if running == 0:
            return batch_size
        if running <= REFILL_BELOW * batch_size and _is_plain(self.cache):
            return batch_size - running
        return 0

    def join(self, requests: Sequence[Request]) -> None:
        """Prefill these requests and add them to the batch."""
        self.drop_finished()
        cache, state = self._prefill(requests)
        if self.requests:
            self._append(cache, state)
        else:
            self.cache = cache
            self.state = state
        self.requests += requests
        self.written += [[] for _ in requests]

    def _append(self, cache: Any, state: dict[str, Tensor]) -> None:
        width = max(self.state["mask"].shape[1], state["mask"].shape[1])
        for ours, theirs in zip(self.cache.layers, cache.layers, strict=True):
            ours.keys = torch.cat([_pad_left(ours.keys, width), _pad_left(theirs.keys, width)])
            ours.values = torch.cat([_pad_left(ours.values, width), _pad_left(theirs.values, width)])
        for part in (self.state, state):
            part["mask"] = pad(part["mask"], (width - part["mask"].shape[1], 0))
        self.state = {name: torch.cat([self.state[name], state[name]]) for name in state}

    def _prefill(self, requests: Sequence[Request]) -> tuple[Any, dict[str, Tensor]]:
        """Cache and state after the prompts; equal prompts are computed once and copied to all their samples."""
        device = self.sampler.model.device
        prompts = list(dict.fromkeys(request.ids for request in requests))
        width = max(map(len, prompts))
        padding = [[0] * (width - len(prompt)) for prompt in prompts]
        ids = torch.tensor([[*left, *prompt] for left, prompt in zip(padding, prompts)]).to(device)
        mask = torch.tensor([[*left, *([1] * len(prompt))] for left, prompt in zip(padding, prompts)]).to(device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        out = self.sampler.model(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1
        )
        prompt_index = {prompt: index for index, prompt in enumerate(prompts)}
        source = torch.tensor([prompt_index[request.ids] for request in requests], device=device)
        out.past_key_values.batch_select_indices(source)
        seed = self.sampler.sampling.seed
        return out.past_key_values, {
            "keys": torch.tensor([sample_key(seed, *request.key) for request in requests], device=device),
            "limits": torch.tensor([request.max_new_tokens for request in requests], device=device),
            "steps": torch.zeros(len(requests), dtype=torch.long, device=device),
            "running": torch.ones(len(requests), dtype=torch.bool, device=device),
            "positions": positions[source, -1],
            "mask": mask[source],
            "logits": out.logits[:, -1][source],
        }

    def step(self) -> list[Generation]:
        """Write one token to every sequence; return the responses that ended with it."""
        state = self.state
        stops = self.sampler.stops
        tokens = self.sampler.choose(state["logits"], state["keys"], state["steps"])
        usable = state["logits"].amax(-1).isfinite() | ~state["running"]
        chosen = torch.where(usable, tokens, NOT_FINITE).tolist()
        if NOT_FINITE in chosen:
            raise ValueError(self._nonfinite_message(chosen.index(NOT_FINITE)))
        state["steps"] = state["steps"] + 1
        for ids, token in zip(self.written, chosen):
            ids.append(token)
        at_end_token = torch.isin(tokens, torch.tensor(stops.ids, device=tokens.device, dtype=tokens.dtype))
        ended = (at_end_token | (state["steps"] >= state["limits"])) & state["running"]
        places = sorted({*ended.nonzero().flatten().tolist(), *self._at_stop_string()})
        state["running"][places] = False
        finished = []
        for place in places:
            request = self.requests[place]
            ids = self.written[place]
            text, count, finish = stops.cut(ids)
            finished.append(Generation(request.problem, request.sample, text, count, finish, ids))
        if self.num_running:
            kept = self.drop_finished(REFILL_BELOW)
            self._advance(tokens[kept])
        else:
            self.requests = []
            self.written = []
        return finished

    def _nonfinite_message(self, place: int) -> str:
        request = self.requests[place]
        return (
            f"the logits of {type(self.sampler.model).__name__} are NaN or infinite after {len(self.written[place])} "
            f"tokens of a response (problem {request.problem}, sample {request.sample}), so its responses would be "
            "arbitrary. Its weights may be damaged, or its dtype too narrow: try float32 or bfloat16."
        )

    def _at_stop_string(self) -> list[int]:
        """The running sequences that contain a stop string; checked every few tokens and cut exactly afterwards."""
        stops = self.sampler.stops
        if not stops.texts:
            return []
        running = self.state["running"].tolist()
        due = [place for place, ids in enumerate(self.written) if running[place] and len(ids) % CHECK_EVERY == 0]
        return [place for place in due if stops.contains(self.written[place][-stops.window :])]

    def drop_finished(self, threshold: float = 1.0) -> Int[Tensor, " B"]:
        """Remove finished sequences unless more than `threshold` of the batch is running; the places that stay."""
        if not self.requests:
            return torch.empty(0, dtype=torch.long)
        running = self.state["running"]
        keep = running.nonzero().flatten()
        if len(keep) == len(running) or len(keep) > threshold * len(running):
            return torch.arange(len(running), device=running.device)
        self.cache.batch_select_indices(keep)
        self.state = {name: value[keep] for name, value in self.state.items()}
        places = keep.tolist()
        self.requests = [self.requests[place] for place in places]
        self.written = [self.written[place] for place in places]
        if _is_plain(self.cache):
            self._drop_common_padding()
        return keep

    def _drop_common_padding(self) -> None:
        """Remove the columns on the left that are padding in every sequence."""
        start = int(self.state["mask"].any(dim=0).int().argmax())
        self.state["mask"] = self.state["mask"][:, start:]
        for layer in self.cache.layers:
            layer.keys = layer.keys[:, :, start:]
            layer.values = layer.values[:, :, start:]

    def _advance(self, tokens: Int[Tensor, " B"]) -> None:
        """One forward pass over the new tokens; its logits choose the next ones."""
        state = self.state
        state["positions"] = state["positions"] + 1
        state["mask"] = pad(state["mask"], (0, 1), value=1)
        out = self.sampler.model(
            input_ids=tokens[:, None],
            attention_mask=state["mask"],
            past_key_values=self.cache,
            position_ids=state["positions"][:, None],
            use_cache=True,
            logits_to_keep=1,
        )
        state["logits"] = out.logits[:, -1]


def _pad_left(part: Tensor, width: int) -> Tensor:
    """Keys or values [B, heads, T, size] with zeros on the left up to `width` positions."""
    return pad(part, (0, 0, width - part.shape[2], 0))


def _is_plain(cache: Any) -> bool:
    """Whether a cache is keys and values of every position and nothing else, so that columns can be added or cut."""
    layers = getattr(cache, "layers", None)
    return layers is not None and all(type(layer) is DynamicLayer for layer in layers)
