"""The words of the demo's world and their tokenizer: one word, one token."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, BOS, EOS, UNKNOWN = SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
ASK = "?"
NUMBERS = tuple("0123456789")
PLUS, MINUS, TIMES = SIGNS = ("+", "-", "*")
OPERATIONS = tuple(f"{sign}{number}" for sign in SIGNS for number in NUMBERS)
OPENERS = (("first", "start", "take"), ("then", "next", "now"), ("finally", "last", "lastly"))  # by step
EQUALS = ("=", "gives", "is", "makes")
ANSWERS = ("ans", "so", "result")
RAMBLINGS = ("well", "hmm", "maybe", "the", "clock", "turns", "round", "again", "and", "but", "who", "knows")

WORDS = (
    *SPECIAL,
    ASK,
    *NUMBERS,
    *OPERATIONS,
    *(word for step in OPENERS for word in step),
    *EQUALS,
    *ANSWERS,
    *RAMBLINGS,
)
IDS = {word: index for index, word in enumerate(WORDS)}

# Nothing stands between the words of a question but spaces, so a conversation is its messages one after the other.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ bos_token + ' ' + message['content'] + ' ' }}{% endif %}{% endfor %}"
)


def encode(words: list[str]) -> list[int]:
    """The ids of words, as the tokenizer gives them."""
    return [IDS[word] for word in words]


def make_tokenizer() -> "PreTrainedTokenizerFast":
    """A word-level tokenizer that splits at spaces; it adds no tokens of its own."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel(IDS, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNKNOWN
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
