"""Draw responses with transformers: `Sampler(model, tokenizer, sampling).sample(requests)` yields them as they finish.

Prompts are sorted by length and prefilled once for all their samples; finished rows make room for waiting ones; every
random number is a function of (seed, problem, sample, step, token), so the batch never matters beyond rounding.
"""

import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TopKLogitsWarper, TopPLogitsWarper

from qsft.evals.decode import Batch
from qsft.evals.noise import gumbel
from qsft.evals.protocol import Sampling
from qsft.evals.request import Generation, Request, Row, Stops, context_of, plan

MOST_ROWS = 512
CPU_MEMORY = 2 << 30
OPTIONAL = {"position_ids", "logits_to_keep"}  # not every architecture takes them, and none needs to


class Sampler:
    """Draws responses from a causal language model in batches.

    batch_size: rows at most; None is what the KV cache leaves room for. A model's context limits a response's length,
    and a prompt that leaves no room at all is refused.
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
        self.pad = next((i for i in (tokenizer.pad_token_id, tokenizer.eos_token_id) if i is not None), 0)
        parameters = inspect.signature(model.forward).parameters.values()
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
        self._unknown = set() if takes_all else OPTIONAL - {one.name for one in parameters}

    def sample(self, requests: Iterable[Request]) -> Iterator[Generation]:
        """The responses, in the order in which they finish; where memory does not suffice, in smaller batches."""
        rows = plan(requests, self.tokenizer, self.sampling.max_new_tokens, self.context)
        was_training = self.model.training
        self.model.eval()
        try:
            while rows:
                size, done = self.batch_size or self._room(rows[0]), set()
                try:
                    for generation in self._decode(rows, size):
                        done.add((generation.problem, generation.sample))
                        yield generation
                except torch.OutOfMemoryError:
                    if min(size, len(rows)) < 2:
                        raise
                    self.batch_size = (min(size, len(rows)) + 1) // 2
                    torch.cuda.empty_cache()
                rows = [row for row in rows if (row.request.problem, row.request.sample) not in done]
        finally:
            self.model.train(was_training)

    # Not inference_mode: a generator must not leave it switched on in its caller between two responses.
    def _decode(self, rows: Sequence[Row], size: int) -> Iterator[Generation]:
        batch, waiting = Batch(self), deque(rows)
        while waiting or batch.unfinished:
            with torch.no_grad():
                joining = min(batch.takes(size), len(waiting))
                if joining:
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

    def forward(self, **inputs: Any) -> Any:
        """The model's output with a cache, asked in the words that this architecture knows."""
        return self.model(**{name: inputs[name] for name in inputs if name not in self._unknown}, use_cache=True)

    def _room(self, row: Row) -> int:
        """Rows that fit into half of the free memory: KV cache at full length, and the noise over the vocabulary."""
        config = self.model.config.get_text_config()
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        length = len(row.prompt) + row.limit
        cache = 2 * config.num_hidden_layers * heads * width * length * self.model.dtype.itemsize
        free = torch.cuda.mem_get_info(self.model.device)[0] // 2 if self.model.device.type == "cuda" else CPU_MEMORY
        return int(max(1, min(MOST_ROWS, free // (cache + 48 * config.vocab_size))))
