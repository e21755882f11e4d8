"""What `qsft plan` knows of the paper's settings without a network: the models' shapes, about how long rows are."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# (type, hidden, layers, heads, key-value heads, intermediate, vocabulary, tied), as in the models' own config.json.
QWEN_1P5B = ("qwen2", 1536, 28, 12, 2, 8960, 151_936, True)
QWEN_7B = ("qwen2", 3584, 28, 28, 4, 18_944, 152_064, False)
QWEN3_1P7B = ("qwen3", 2048, 28, 16, 8, 6144, 151_936, True)
LLAMA_3B = ("llama", 3072, 28, 24, 8, 8192, 128_256, True)
LLAMA_8B = ("llama", 4096, 32, 32, 8, 14_336, 128_256, False)
SHAPES = {
    "Qwen/Qwen2.5-Math-1.5B": QWEN_1P5B,
    "Qwen/Qwen2.5-1.5B": QWEN_1P5B,
    "Qwen/Qwen2.5-Math-7B": QWEN_7B,
    "Qwen/Qwen2.5-7B": QWEN_7B,
    "Qwen/Qwen3-1.7B-Base": QWEN3_1P7B,
    "meta-llama/Llama-3.2-3B": LLAMA_3B,
    "meta-llama/Llama-3.1-8B": LLAMA_8B,
}

# Label tokens per row, guessed from the kind of text: worked solutions, reasoning below 3,072 tokens, short answers.
LABEL_TOKENS = {"numina": 400, "openr1": 1700, "m23k": 300}


def known_config(model: str) -> "PretrainedConfig | None":
    """The configuration of a model of the paper, as far as memory depends on it."""
    from transformers import AutoConfig

    if model not in SHAPES:
        return None
    kind, hidden, layers, heads, key_values, intermediate, vocabulary, tied = SHAPES[model]
    shape: dict[str, Any] = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_values,
        "head_dim": 128,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
    }
    return AutoConfig.for_model(kind, **shape)
