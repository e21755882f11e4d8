"""Prompts: what is asked, and with which special tokens."""

import pytest

from qsft.evals.prompts import PRESETS, encode, find_preset
from qsft.turns import BOXED


def test_the_papers_prompt():
    system, user = PRESETS["boxed"].prompt("What?")
    assert system == {"role": "system", "content": "You are a helpful assistant."}
    assert user["content"] == f"What?\n{BOXED}"


def test_options_are_lines():
    (user,) = PRESETS["question"].prompt("Which?", {"A": "x", "B": "y"})
    assert user["content"] == "Which?\nA. x\nB. y"
    assert PRESETS["plain"].prompt("Which?") == "Which?"


def test_text_messages_and_ids_become_ids(tiny_tokenizer):
    messages = PRESETS["question"].prompt("w1 w2")
    words = tiny_tokenizer.convert_ids_to_tokens(encode(tiny_tokenizer, messages))
    assert words == ["<|user|>", "w1", "w2", "<|assistant|>"]
    assert encode(tiny_tokenizer, [5, 6]) == [5, 6]
    assert encode(tiny_tokenizer, "w1 w2") == tiny_tokenizer("w1 w2")["input_ids"]


def test_llama_base_gets_the_header_format_with_one_bos():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = [
        "<|begin_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
        "user",
        "assistant",
        "hi",
        "u",
    ]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="u"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", 0)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=words[0], additional_special_tokens=words[1:4]
    )
    written = tokenizer.convert_ids_to_tokens(encode(tokenizer, PRESETS["question"].prompt("hi")))
    assert written == [words[0], words[1], "user", words[2], "hi", words[3], words[1], "assistant", words[2]]
    assert encode(tokenizer, "hi") == encode(tokenizer, "<|begin_of_text|>hi") == [0, 6]


def test_a_tokenizer_without_template_is_refused_with_a_remedy(sum_tokenizer):
    with pytest.raises(ValueError, match=r"no chat template.*--prompt plain-boxed"):
        encode(sum_tokenizer, PRESETS["boxed"].prompt("1"))


def test_an_unknown_preset_is_named():
    with pytest.raises(ValueError, match="Did you mean 'question'"):
        find_preset("questoin")
