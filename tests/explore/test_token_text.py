from itertools import pairwise

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qsft.explore.token_text import TokenText, table_text
from qsft.page import escape


def byte_level():
    """A byte-level tokenizer: every byte a token, no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_words_of_a_word_level_tokenizer_keep_their_spaces(tokenizer):
    text = TokenText(tokenizer)
    ids = tokenizer("w1 w2 w3")["input_ids"]
    assert text.decode(ids) == "w1 w2 w3"
    assert text.alone(ids[0]) + text.after(ids[0], ids[1]) + text.after(ids[1], ids[2]) == "w1 w2 w3"


def test_the_pieces_of_a_text_make_the_text():
    tokenizer = byte_level()
    ids = tokenizer("a b\nc")["input_ids"]
    text = TokenText(tokenizer)
    rest = "".join(text.after(before, token) for before, token in pairwise(ids))
    assert text.alone(ids[0]) + rest == "a b\nc"


def test_half_a_character_is_shown_as_the_tokenizer_spells_it():
    tokenizer = byte_level()
    first, second = tokenizer("é")["input_ids"]
    text = TokenText(tokenizer)
    assert text.alone(first) == tokenizer.convert_ids_to_tokens(first) != "\ufffd"
    assert "\ufffd" not in text.after(first, second)


def test_white_space_is_shown_in_tables():
    assert table_text(" a\n\t") == "␣a⏎⇥"
    assert table_text("") == "∅"


def test_bidirectional_and_zero_width_characters_are_shown_in_tables():
    assert table_text("a\u202eb\u200bc") == "a⟨U+202E⟩b⟨U+200B⟩c"


def test_bidirectional_and_zero_width_characters_are_shown_on_pages():
    assert escape("<b>\u2066\ufeff\n") == "&lt;b&gt;⟨U+2066⟩⟨U+FEFF⟩\n"
