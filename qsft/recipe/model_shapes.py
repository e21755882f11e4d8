"""The configuration of the student; the paper's models are known without the hub."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from qsft.inference.loading import load_config
from qsft.recipe.job import Job
from qsft.user_functions import is_function_name


def _shape(
    model_type: str, hidden: int, layers: int, heads: int, kv_heads: int, mlp: int, vocabulary: int, *, tied: bool
) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


# As in the models' own config.json.
QWEN2_1P5B = _shape("qwen2", 1536, 28, 12, 2, 8960, 151_936, tied=True)
QWEN2_7B = _shape("qwen2", 3584, 28, 28, 4, 18_944, 152_064, tied=False)
SHAPES = {
    "Qwen/Qwen2.5-Math-1.5B": QWEN2_1P5B,
    "Qwen/Qwen2.5-1.5B": QWEN2_1P5B,
    "Qwen/Qwen2.5-Math-7B": QWEN2_7B,
    "Qwen/Qwen2.5-7B": QWEN2_7B,
    "Qwen/Qwen3-1.7B-Base": _shape("qwen3", 2048, 28, 16, 8, 6144, 151_936, tied=True),
    "meta-llama/Llama-3.2-3B": _shape("llama", 3072, 28, 24, 8, 8192, 128_256, tied=True),
    "meta-llama/Llama-3.1-8B": _shape("llama", 4096, 32, 32, 8, 14_336, 128_256, tied=False),
}


def student_config(job: Job) -> PretrainedConfig:
    """Return the text configuration of the student; no weights are read.

    Raises:
        ValueError: the student is made by a function, so it has no configuration yet.
    """
    name = job.student
    if is_function_name(name):
        raise ValueError(
            f"the student is made by {name} when the run starts, so its configuration is not known yet. Give a model "
            "that exists with --model_name_or_path DIR."
        )
    revision = job.model.model_revision
    if name in SHAPES and not Path(name).is_dir() and revision in (None, "main"):
        return known_config(name)
    config = load_config(name, revision=revision, trust_remote_code=job.args.trust_remote_code)
    return config.get_text_config()


def known_config(model: str) -> PretrainedConfig:
    """Return the configuration of one of the paper's students."""
    return AutoConfig.for_model(**SHAPES[model], head_dim=128, dtype="bfloat16")
