from hypothesis import given
from hypothesis import strategies as st

from qsft.demo.foundation import untrained
from qsft.demo.training import save
from qsft.demo.vocabulary import EOS, IDS, WORDS, encode, make_tokenizer

TOKENIZER = make_tokenizer()


def test_words_are_distinct_and_about_75():
    assert len(set(WORDS)) == len(WORDS) == len(IDS)
    assert 70 <= len(WORDS) <= 80


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=30))
def test_the_tokenizer_agrees_with_encode_and_decodes_to_the_same_words(words):
    ids = TOKENIZER(" ".join(words))["input_ids"]
    assert ids == encode(words)
    assert TOKENIZER.decode(ids).split() == words


def test_a_tokenizer_saved_with_its_model_is_the_same(tmp_path):
    from transformers import AutoTokenizer

    save(untrained(0), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == IDS
    assert loaded.eos_token == EOS
    assert loaded(" ".join(WORDS))["input_ids"] == encode(list(WORDS))


def test_the_chat_template_writes_a_problem_as_the_world_does():
    messages = [{"role": "user", "content": "7 +5 *3 -8 ?"}, {"role": "assistant", "content": "so 8"}]
    text = make_tokenizer().apply_chat_template(messages, tokenize=False)
    assert " ".join(text.split()) == "<bos> 7 +5 *3 -8 ? so 8 <eos>"
