"""Prompts as the base models of the paper read them."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from qsft.data.prompts import PROMPTS, render_prompt
from qsft.turns import BOXED


def llama_like(*extra):
    """A base tokenizer without a chat template that adds a BOS of its own when asked for special tokens."""
    words = ["<|begin_of_text|>", "<|end_of_text|>", *extra, "x"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="x"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|begin_of_text|>",
        eos_token="<|end_of_text|>",
        unk_token="x",
        additional_special_tokens=list(extra),
    )


def test_llama_base_gets_the_header_format_with_one_bos():
    tokenizer = llama_like("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    text = render_prompt(tokenizer, "What is 2+2?", PROMPTS["boxed"])
    assert text == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant.<|eot_id|>"
        f"<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?\n{BOXED}<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1


def test_a_template_gets_the_raw_question(tiny_tokenizer):
    assert render_prompt(tiny_tokenizer, "w1 ?", PROMPTS["question"]) == "<|user|> w1 ? <|assistant|> "


def test_a_tokenizer_without_either_is_refused():
    with pytest.raises(ValueError, match=r"no chat template.*start_header_id"):
        render_prompt(llama_like(), "x", PROMPTS["question"])
