"""The text of tokens, for pages."""

from typing import TYPE_CHECKING, Any

from qsft.page import show_invisible

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"  # what `decode` returns for bytes that are not a character by themselves


class TokenText:
    """The text of tokens of one tokenizer."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        model = type(getattr(backend, "model", None)).__name__
        # A word-level tokenizer without a decoder: `decode` would join the words without spaces.
        self.is_word_level = model == "WordLevel" and backend.decoder is None

    def decode(self, ids: list[int]) -> str:
        """Return the text of several tokens."""
        if self.is_word_level:
            return " ".join(str(word) for word in self.tokenizer.convert_ids_to_tokens(ids))
        return str(self.tokenizer.decode(ids, clean_up_tokenization_spaces=False))

    def alone(self, token: int) -> str:
        """Return the text of one token, or its spelling in the vocabulary if it is not a character by itself."""
        text = self.decode([token])
        if text and REPLACEMENT not in text:
            return text
        return str(self.tokenizer.convert_ids_to_tokens(token))

    def after(self, previous: int, token: int) -> str:
        """Return what a token adds to the text: some tokenizers write the space only between two tokens."""
        first = self.decode([previous])
        both = self.decode([previous, token])
        if both.startswith(first) and REPLACEMENT not in both:
            return both.removeprefix(first)
        return self.alone(token)


def table_text(text: str) -> str:
    """Return a token's text for a table: white space and invisible characters are shown."""
    if text == "":
        return "∅"
    return show_invisible(text.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣"))
