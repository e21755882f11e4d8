"""What recipes/demo.yaml names as `module:function`: the demo's base, its teacher and its demonstrations."""

from pathlib import Path

from datasets import Dataset

from qsft.demo.foundation import demo_models
from qsft.demo.scenario import recipe_rows


def base_model(seed: int) -> Path:
    """Return the directory of the base model, which is trained first (about a minute) if it is not kept."""
    return Path(demo_models(seed)[0])


def teacher_model(seed: int) -> Path:
    """Return the directory of the teacher, which is trained first if it is not kept."""
    return Path(demo_models(seed)[1])


def demonstrations(seed: int) -> Dataset:
    """Return the noisy demonstrations, tokenized."""
    return recipe_rows(seed)
