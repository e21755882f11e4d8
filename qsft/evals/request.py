"""What a sampler is asked for and what it gives back; where a response ends."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from qsft.data.prompts import Prompt, encode

TEXT_CHECK = 32  # steps between looks for a stop string that is no single token; the text is cut exactly afterwards


@dataclass(frozen=True)
class Request:
    """One response to draw: sample `sample` of problem `problem`, whose prompt is text, token ids or messages."""

    problem: str
    sample: int
    prompt: Prompt


@dataclass(frozen=True)
class Generation:
    """One response: its text without special tokens, its length in tokens, and why it ended (stop or length)."""

    problem: str
    sample: int
    text: str
    tokens: int
    finish: str


@dataclass(frozen=True)
class Row:
    """A request as the decoder sees it: encoded, with the number of tokens it may have."""

    request: Request
    prompt: tuple[int, ...]
    limit: int


def plan(
    requests: Iterable[Request], tokenizer: PreTrainedTokenizerBase, max_new_tokens: int, context: int | None
) -> list[Row]:
    """The rows of the requests, longest prompt first, so that a batch is even and the first one is the largest."""
    requests = list(requests)
    encoded = {id(request.prompt): request.prompt for request in requests}  # samples share their prompt's object
    ids = {key: tuple(encode(tokenizer, prompt)) for key, prompt in encoded.items()}
    rows = []
    for request in requests:
        prompt = ids[id(request.prompt)]
        room = max_new_tokens if context is None else min(max_new_tokens, context - len(prompt))
        if not prompt or room < 1:
            raise ValueError(
                f"problem {request.problem}: its prompt has {len(prompt)} tokens, and the model's context of "
                f"{context} leaves no room for a response. Leave the problem out, or use a model of longer context."
            )
        rows.append(Row(request, prompt, room))
    return sorted(rows, key=lambda row: -len(row.prompt))


def context_of(config: Any) -> int | None:
    """The most positions a model has, or None where its configuration does not say."""
    return getattr(config.get_text_config(), "max_position_embeddings", None)


class Stops:
    """Where a response ends: end-of-sequence ids, stop strings that are one token, stop strings that are not."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], model: Any = None) -> None:
        self.tokenizer = tokenizer
        configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        ends = [tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])]
        vocabulary = tokenizer.get_vocab()
        self.ids = sorted(
            {i for i in ends if i is not None} | {vocabulary[text] for text in stop if text in vocabulary}
        )
        self.texts = tuple(text for text in stop if text not in vocabulary)

    def among(self, tokens: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
        """True where a token ends its row."""
        return torch.isin(tokens, torch.tensor(self.ids, device=tokens.device, dtype=tokens.dtype))

    def cut(self, ids: Sequence[int]) -> tuple[str, int, str]:
        """Text, number of tokens (the ending one counts) and finish of a response, cut at the first stop string."""
        stopped = bool(ids) and ids[-1] in self.ids
        body = ids[:-1] if stopped else ids
        text = self._decode(body)
        found = [at for stop in self.texts if (at := text.find(stop)) >= 0]
        if not found:
            return text, len(ids), "stop" if stopped else "length"
        tokens = next(n for n in range(1, len(body) + 1) if any(stop in self._decode(body[:n]) for stop in self.texts))
        return text[: min(found)], tokens, "stop"

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))
