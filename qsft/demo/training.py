"""Every training of the demo: the product's own trainer on documents of the world."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedModel, PrinterCallback, TrainerCallback

from qsft.demo.scenario import TRAINING, Phase
from qsft.demo.world import make_tokenizer
from qsft.progress import Progress
from qsft.teacher.lookup import TeacherCache
from qsft.train.config import TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer


class Phases:
    """Phases of work on a console, with the seconds each one took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str, total: int, unit: str) -> Iterator[Progress]:
        with Progress(f"  {name}", total, unit, console=self.console) as progress:
            yield progress
        self.seconds[name] = progress.seconds

    def say(self, name: str, text: str) -> None:
        self.console.print(f"  {name}: {text}", highlight=False, markup=False)


class Steps(TrainerCallback):
    """Advances the progress at every optimiser step."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.progress.advance()


def fit(
    model: PreTrainedModel,
    data: Dataset,
    phase: Phase,
    *,
    seed: int,
    progress: Progress,
    teacher: TeacherCache | None = None,
    **target: Any,
) -> None:
    """Train `model` for one epoch of `data`; `target` names the row (`target`, `target_kwargs`), SFT by default."""
    with TemporaryDirectory() as scratch:
        trainer = TargetSFTTrainer(
            model,
            TargetSFTConfig(output_dir=scratch, **config_values(phase, seed, **target)),
            teacher=teacher,
            train_dataset=data,
            processing_class=make_tokenizer(),
            callbacks=[Steps(progress)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def config_values(phase: Phase, seed: int, target: str = "sft", **kwargs: Any) -> dict[str, Any]:
    """The values of TargetSFTConfig for a phase, apart from where it writes; recipes/demo.yaml lists the same."""
    own = {"per_device_train_batch_size": phase.batch, "learning_rate": phase.learning_rate, "seed": seed}
    return {"target": target, **kwargs, **own, **TRAINING}


def load(path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def save(model: PreTrainedModel, path: Path) -> None:
    """Write a model with its tokenizer, as every command of qsft reads it."""
    model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
