"""Fixtures every room shares: a word-level tokenizer and tiny random models, made here, downloaded from nowhere."""

import os

# Before torch is imported: several test processes share two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from jaxtyping import install_import_hook

# Shapes are types: checked at run time here, free for the user. Must stand before the first import of qsft.
# (losses.head is left out: accelerate rebuilds a ModelOutput from a dict in its first field.)
install_import_hook(
    ["qsft.targets", "qsft.losses.fused", "qsft.losses.reference", "qsft.losses.sums"], "typecheck.check"
)

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|> ' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|> ' }}{% endif %}"
)
SPECIAL = ("<|pad|>", "<|bos|>", "<|eos|>", "<|unk|>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
VOCAB_SIZE = 320


def make_tokenizer(vocab_size=VOCAB_SIZE):
    """Special and role tokens first, then single digits and signs, then w0, w1, ... up to `vocab_size`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    signs = [*"0123456789", *"+-*/=().,:?!"]
    words = [*SPECIAL, *ROLES, *signs]
    words += [f"w{i}" for i in range(vocab_size - len(words))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pad, bos, eos, unk = SPECIAL
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        bos_token=bos,
        eos_token=eos,
        unk_token=unk,
        additional_special_tokens=list(ROLES),
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(seed=0, **overrides):
    """A random Qwen2 of two layers and hidden size 64; `overrides` are fields of its config."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        **{
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "initializer_range": 0.1,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            **overrides,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


@pytest.fixture(scope="session")
def tiny_tokenizer():
    """A word-level PreTrainedTokenizerFast (320 words) whose chat template marks the assistant's tokens."""
    return make_tokenizer()


@pytest.fixture
def tiny_model():
    """Factory: `tiny_model(seed=1, tie_word_embeddings=True)` is a random Qwen2, the same for the same arguments."""
    return make_model
