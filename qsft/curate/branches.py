"""Greedy continuations that branch off one sequence at many places, all from one set of keys and values.

The sequence is read once. A branch at position t sees the first t columns of its cache (the rest is masked away) and
goes on from there with positions t, t+1, …, so a batch holds branches of any position.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The tokens that end a response: the tokenizer's and those of the model's generation settings."""
    configured = getattr(model.generation_config, "eos_token_id", None)
    ends = [tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])]
    return frozenset(int(token) for token in ends if token is not None)


class Branch(NamedTuple):
    """`token` in the place of the sequence's token `at`."""

    at: int
    token: int


class Trunk:
    """A sequence of token ids with its keys, values and logits."""

    def __init__(self, model: PreTrainedModel, ids: Sequence[int]) -> None:
        types = set(getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"])
        if types != {"full_attention"}:
            raise ValueError(
                f"{type(model).__name__} has layers of the kinds {', '.join(sorted(types))}: branches share a prefix's "
                "keys and values, which needs full attention in every layer. Take another model for this method."
            )
        self.model, self.ids = model, list(ids)
        with torch.no_grad():
            out = model(input_ids=torch.tensor([self.ids], device=model.device), use_cache=True)
        self.logits: Float[Tensor, "T V"] = out.logits[0].float()
        self._layers = [(layer.keys, layer.values) for layer in out.past_key_values.layers]

    def others(self, at: int, count: int) -> list[int]:
        """The likeliest tokens for position `at`, without the one that stands there (which may be the end)."""
        likeliest = self.logits[at - 1].topk(min(count + 1, self.logits.shape[-1])).indices.tolist()
        own = self.ids[at] if at < len(self.ids) else None
        return [token for token in likeliest if token != own][:count]

    @torch.no_grad()
    def grow(self, branches: Sequence[Branch], limits: Sequence[int], ends: Collection[int]) -> list[list[int]]:
        """The tokens of each branch: its own, then greedily up to one of `ends` or to `limits` tokens in all."""
        grown = [[branch.token] for branch in branches]
        alive = [i for i, tokens in enumerate(grown) if tokens[-1] not in ends and limits[i] > 1]
        if not alive:
            return grown
        state = _State(self, [branches[i] for i in alive])
        while alive:
            for i, token in zip(alive, state.next_tokens([grown[i][-1] for i in alive])):
                grown[i].append(token)
            going = [k for k, i in enumerate(alive) if grown[i][-1] not in ends and len(grown[i]) < limits[i]]
            if len(going) < len(alive):
                state.keep(going)
                alive = [alive[k] for k in going]
        return grown

    def cache(self, length: int, rows: int) -> DynamicCache:
        """The first `length` columns, as if computed for so many rows; nothing is copied before it grows."""
        shared = [tuple(one[:, :, :length].expand(rows, -1, -1, -1) for one in layer) for layer in self._layers]
        return DynamicCache(shared)


class _State:
    """The rows of a batch of branches on their way."""

    def __init__(self, trunk: Trunk, branches: Sequence[Branch]) -> None:
        self.model = trunk.model
        self.positions = torch.tensor([branch.at for branch in branches], device=self.model.device)
        longest = int(self.positions.max())
        self.cache = trunk.cache(longest, len(branches))
        self.mask = (torch.arange(longest, device=self.model.device) < self.positions[:, None]).long()

    def next_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The likeliest token after each row's last one."""
        self.mask = torch.cat([self.mask, torch.ones_like(self.mask[:, :1])], dim=1)
        out = self.model(
            input_ids=torch.tensor(tokens, device=self.model.device)[:, None],
            attention_mask=self.mask,
            position_ids=self.positions[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.positions = self.positions + 1
        return [int(token) for token in out.logits[:, -1].argmax(-1)]

    def keep(self, rows: Sequence[int]) -> None:
        """Leave all other rows behind."""
        if rows:
            index = torch.tensor(rows, device=self.model.device)
            self.cache.batch_select_indices(index)
            self.mask, self.positions = self.mask[index], self.positions[index]
