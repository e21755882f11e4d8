"""Where a response ends: ids of special tokens, and stop strings in its text."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

CHECK_EVERY = 32  # tokens between two searches for a stop string; the text is cut exactly afterwards


class StopConditions:
    """The token ids and stop strings that end a response.

    A stop string that is a special token of the tokenizer ends a response by its id, since decoded text does not show
    it. Every other stop string ends a response wherever it occurs in the text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str], model: Any = None) -> None:
        self.tokenizer = tokenizer
        end_ids = _end_token_ids(tokenizer, model)
        special_ids = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
        special_ids.update(tokenizer.all_special_ids, end_ids)
        vocabulary = tokenizer.get_vocab()
        stop_ids = {text: vocabulary[text] for text in stop if vocabulary.get(text) in special_ids}
        self.ids = sorted(end_ids.union(stop_ids.values()))
        self.texts = tuple(text for text in stop if text not in stop_ids)
        longest = max((len(text.encode()) for text in self.texts), default=0)
        # A token holds at least one byte of text, so this many tokens contain the longest stop string whole.
        self.window = CHECK_EVERY + longest

    def cut(self, ids: Sequence[int]) -> tuple[str, int, str]:
        """Text, number of tokens (including the one that ends it) and finish of a response, cut at a stop string."""
        ended = bool(ids) and ids[-1] in self.ids
        body = ids[:-1] if ended else ids
        text = self._decode(body)
        positions = [text.find(stop) for stop in self.texts]
        found = [position for position in positions if position >= 0]
        if not found:
            return text, len(ids), "stop" if ended else "length"
        # The fewest tokens whose text contains a stop string.
        tokens = bisect_left(range(1, len(body)), True, key=lambda count: self.contains(body[:count])) + 1
        return text[: min(found)], tokens, "stop"

    def contains(self, ids: Sequence[int]) -> bool:
        """Whether the text of these tokens contains a stop string."""
        text = self._decode(ids)
        return any(stop in text for stop in self.texts)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def _end_token_ids(tokenizer: PreTrainedTokenizerBase, model: Any) -> set[int]:
    """The end-of-sequence ids of the tokenizer and of the model's generation configuration."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    candidates = configured if isinstance(configured, list) else [configured]
    return {index for index in [tokenizer.eos_token_id, *candidates] if index is not None}
