"""How the demo trains and stores a model: one epoch with TargetSFTTrainer, on the CPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedModel, PrinterCallback, TrainerCallback

from qsft.demo.scenario import TRAINING, Phase
from qsft.demo.task import make_tokenizer
from qsft.progress import Progress
from qsft.teacher.cache import TeacherCache
from qsft.train.config import TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer


class Phases:
    """The phases of a run on a console, and the seconds that each one took, repetitions included."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str, total: int, unit: str) -> Iterator[Progress]:
        """Show a progress bar while the phase runs."""
        with Progress(f"  {name}", total, unit, console=self.console) as progress:
            yield progress
        self.seconds[name] = self.seconds.get(name, 0.0) + progress.seconds

    def note(self, name: str, text: str) -> None:
        """Print a line about a phase."""
        self.console.print(f"  {name}: {text}", highlight=False, markup=False)


class _AdvanceProgress(TrainerCallback):
    def __init__(self, progress: Progress) -> None:
        self.progress = progress

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.progress.advance()


def fit(
    model: PreTrainedModel,
    data: Dataset,
    phase: Phase,
    *,
    seed: int,
    progress: Progress,
    target_name: str = "sft",
    hyper_parameters: Mapping[str, Any] | None = None,
    teacher: TeacherCache | None = None,
) -> None:
    """Train `model` in place for one epoch of `data`."""
    values = config_values(phase, seed, target_name, hyper_parameters)
    with TemporaryDirectory() as scratch:
        trainer = TargetSFTTrainer(
            model,
            TargetSFTConfig(output_dir=scratch, **values),
            teacher=teacher,
            train_dataset=data,
            processing_class=make_tokenizer(),
            callbacks=[_AdvanceProgress(progress)],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def config_values(
    phase: Phase, seed: int, target_name: str = "sft", hyper_parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the values of TargetSFTConfig for a phase, without output_dir; recipes/demo.yaml lists the same."""
    return {
        "target": target_name,
        "target_kwargs": dict(hyper_parameters or {}),
        "per_device_train_batch_size": phase.batch,
        "learning_rate": phase.learning_rate,
        "seed": seed,
        **TRAINING,
    }


def load(path: Path) -> PreTrainedModel:
    """Return a model in float32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def save(model: PreTrainedModel, path: Path) -> None:
    """Write a model with its tokenizer, as every command of qsft reads it."""
    model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)
