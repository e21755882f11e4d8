"""What `qsft plan` knows of the paper's settings without a network: the models' shapes, about how long rows are."""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# As in the models' own config.json.
KEYS = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "intermediate_size", "vocab_size", "tie_word_embeddings")  # fmt: skip
QWEN_1P5B = ("qwen2", 1536, 28, 12, 2, 8960, 151_936, True)
QWEN_7B = ("qwen2", 3584, 28, 28, 4, 18_944, 152_064, False)
SHAPES = {
    "Qwen/Qwen2.5-Math-1.5B": QWEN_1P5B,
    "Qwen/Qwen2.5-1.5B": QWEN_1P5B,
    "Qwen/Qwen2.5-Math-7B": QWEN_7B,
    "Qwen/Qwen2.5-7B": QWEN_7B,
    "Qwen/Qwen3-1.7B-Base": ("qwen3", 2048, 28, 16, 8, 6144, 151_936, True),
    "meta-llama/Llama-3.2-3B": ("llama", 3072, 28, 24, 8, 8192, 128_256, True),
    "meta-llama/Llama-3.1-8B": ("llama", 4096, 32, 32, 8, 14_336, 128_256, False),
}

# Label tokens per row, guessed from the kind of text: worked solutions, reasoning below 3,072 tokens, short answers.
LABEL_TOKENS = {"numina": 400, "openr1": 1700, "m23k": 300}


def known_config(model: str) -> "PretrainedConfig | None":
    """The configuration of a model of the paper, as far as memory depends on it."""
    from transformers import AutoConfig

    if model not in SHAPES:
        return None
    shape: dict[str, Any] = dict(zip(KEYS, SHAPES[model]))
    return AutoConfig.for_model(**shape, head_dim=128, dtype="bfloat16")


def stay_offline_without_hub() -> None:
    """The hub's libraries would retry for half a minute; call this before they are imported."""
    import socket
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        if not getproxies():
            socket.create_connection((host, 443), timeout=5).close()
    except OSError:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
