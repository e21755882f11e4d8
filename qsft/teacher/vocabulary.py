"""The tokens of a tokenizer: whether two tokenizers match, and whether a head has an entry for every token."""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from qsft.fingerprints import digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY = "vocabulary.json"  # the file of a cache that holds them


class Vocabulary(NamedTuple):
    """The tokens of a tokenizer.

    content      its tokens by id as JSON, null where an id has none
    about        what the manifest says about it: digest, tokens, chat_template
    base_tokens  the number of tokens without the added ones, which may have no entry in a head (Gemma 3's image token)
    """

    content: bytes
    about: dict[str, Any]
    base_tokens: int

    @property
    def size(self) -> int:
        """Ids it knows, added ones included."""
        return int(self.about["tokens"])

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase") -> "Vocabulary":
        by_id = {index: token for token, index in tokenizer.get_vocab().items()}
        tokens = [by_id.get(index) for index in range(max(by_id) + 1)]
        content = json.dumps(tokens, ensure_ascii=False, indent=0).encode(errors="surrogatepass")
        template = getattr(tokenizer, "chat_template", None)
        about = {
            "digest": digest(content),
            "tokens": len(tokens),
            "chat_template": digest(json.dumps(template).encode()) if template else None,
        }
        return cls(content, about, tokenizer.vocab_size)

    def count_shared_ids(self, other: bytes, *, problem: str, remedy: str) -> int:
        """Return the number of ids in common with another vocabulary's content.

        Tokens added at the end (a pad token) are no difference as long as no document uses them.

        Raises:
            ValueError: if an id means different tokens; `problem` and `remedy` are parts of its message.
        """
        if other == self.content:
            return self.size
        own_tokens, other_tokens = _parse_tokens(self.content), _parse_tokens(other)
        shared = min(len(own_tokens), len(other_tokens))
        differing = (index for index in range(shared) if own_tokens[index] != other_tokens[index])
        first = next(differing, None)
        if first is None and shared:
            return shared
        index = first or 0
        raise ValueError(
            f"{problem}: id {index} is {_show_token(other_tokens, index)} there and {_show_token(own_tokens, index)} "
            f"here. Log-probs are stored by token id: {remedy}"
        )


def check_head_size(vocab_size: int, tokens: int, whose: str) -> None:
    """Raise ValueError if a head has fewer entries than the tokenizer has tokens."""
    if vocab_size < tokens:
        raise ValueError(
            f"the head of {whose} has {vocab_size} entries, but the tokenizer has {tokens} tokens: they do not belong "
            "together. Teacher and student must share the tokenizer of the data; choose another model or tokenizer."
        )


def _parse_tokens(content: bytes) -> list[str | None]:
    """The tokens of a vocabulary file; none when it is damaged."""
    try:
        tokens = json.loads(content)
    except ValueError:
        return []
    return tokens if isinstance(tokens, list) else []


def _show_token(tokens: list[str | None], index: int) -> str:
    token = tokens[index] if index < len(tokens) else None
    return "no token" if token is None else repr(token)
