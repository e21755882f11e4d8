"""Tokens as text a person can read: what a token adds to the text before it, and a token on its own."""

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Words:
    """The text of tokens, for one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self.one_token_a_word = _one_token_a_word(tokenizer)
        self.alone = lru_cache(maxsize=200_000)(self._alone)
        self.after = lru_cache(maxsize=200_000)(self._after)

    def text(self, ids: list[int]) -> str:
        if self.one_token_a_word:
            return " ".join(map(str, self.tokenizer.convert_ids_to_tokens(ids)))
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def _alone(self, token: int) -> str:
        """One token; bytes that are no character by themselves are shown as the tokenizer spells them."""
        text = self.text([token])
        return text if text and "\ufffd" not in text else str(self.tokenizer.convert_ids_to_tokens(token))

    def _after(self, before: int | None, token: int) -> str:
        """What a token adds to the text: some tokenizers write the space only between two tokens."""
        if before is None:
            return self.alone(token)
        first, both = self.text([before]), self.text([before, token])
        return both.removeprefix(first) if both.startswith(first) and "\ufffd" not in both else self.alone(token)


def _one_token_a_word(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether tokens are whole words that nobody joins again: `decode` would run them together."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "model", None)).__name__ == "WordLevel" and getattr(backend, "decoder", None) is None


def visible(text: str) -> str:
    """A token with its white space made visible, for tables."""
    return text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣") or "∅"
