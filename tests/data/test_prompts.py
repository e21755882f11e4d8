"""Prompts, their turns and special tokens: the same for training and evaluation."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from qsft.data.prompts import BOXED, LLAMA3_HEADERS, PRESETS, encode, find_preset, render


def llama_like(*extra):
    """A base tokenizer without a chat template that adds a BOS itself with add_special_tokens."""
    words = ["<|begin_of_text|>", *extra, "user", "assistant", "hi", "x"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="x"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single=f"{words[0]} $A", special_tokens=[(words[0], 0)])
    special = {"bos_token": words[0], "unk_token": "x", "additional_special_tokens": list(extra)}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


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
    assert render(tiny_tokenizer, messages) == "<|user|> w1 w2 <|assistant|> "
    words = tiny_tokenizer.convert_ids_to_tokens(encode(tiny_tokenizer, messages))
    assert words == ["<|user|>", "w1", "w2", "<|assistant|>"]
    assert encode(tiny_tokenizer, [5, 6]) == [5, 6]
    assert encode(tiny_tokenizer, "w1 w2") == tiny_tokenizer("w1 w2")["input_ids"]


def test_llama_base_gets_the_header_format():
    text = render(llama_like(*LLAMA3_HEADERS), PRESETS["boxed"].prompt("What is 2+2?"))
    assert text == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant.<|eot_id|>"
        f"<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?\n{BOXED}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_prompt_has_one_bos():
    tokenizer = llama_like(*LLAMA3_HEADERS)
    start, end, stop = LLAMA3_HEADERS
    written = tokenizer.convert_ids_to_tokens(encode(tokenizer, PRESETS["question"].prompt("hi")))
    assert written == [tokenizer.bos_token, start, "user", end, "hi", stop, start, "assistant", end]
    hi = tokenizer.convert_tokens_to_ids("hi")
    assert encode(tokenizer, "hi") == encode(tokenizer, "<|begin_of_text|>hi") == [0, hi]


def test_a_tokenizer_without_template_or_headers_raises_with_a_remedy():
    with pytest.raises(ValueError, match=r"no chat template.*start_header_id.*--prompt plain-boxed"):
        encode(llama_like(), PRESETS["boxed"].prompt("x"))


def test_an_unknown_preset_is_named():
    with pytest.raises(ValueError, match="Did you mean 'question'"):
        find_preset("questoin")
