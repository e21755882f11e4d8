"""What recipes/demo.yaml names as `module:function`: the demo's base, its teacher and its demonstrations."""

from pathlib import Path

from datasets import Dataset

from qsft.demo import documents
from qsft.demo.foundation import demo_models
from qsft.demo.scenario import Scenario


def base_model(seed: int) -> Path:
    """Return the directory of the base model, which is trained first (about a minute) if it is not kept."""
    base, _ = demo_models(seed)
    return base


def teacher_model(seed: int) -> Path:
    """Return the directory of the teacher, which is trained first if it is not kept."""
    _, teacher = demo_models(seed)
    return teacher


def demonstrations(seed: int) -> Dataset:
    """Return the noisy demonstrations, tokenized."""
    return documents.demonstrations(Scenario(seed=seed))
