"""Every training of the demo: the product's own trainer on documents of the world."""

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PrinterCallback, TrainerCallback

from qsft.demo.progress import Advance
from qsft.demo.settings import TRAINING, Phase
from qsft.demo.vocabulary import make_tokenizer
from qsft.teacher.cache import TeacherCache
from qsft.train.config import TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer


def fit(
    model: PreTrainedModel,
    data: Dataset,
    phase: Phase,
    *,
    seed: int,
    directory: Path,
    advance: Advance,
    teacher: TeacherCache | None = None,
    **target: Any,
) -> PreTrainedModel:
    """`model` after one epoch of `data`; `target` names the row (`target`, `target_kwargs`), SFT by default."""
    args = TargetSFTConfig(output_dir=str(directory), **config_values(phase, seed, **target))
    trainer = TargetSFTTrainer(
        model,
        args,
        teacher=teacher,
        train_dataset=data,
        processing_class=make_tokenizer(),
        callbacks=[Report(advance)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model


def config_values(phase: Phase, seed: int, target: str = "sft", **kwargs: Any) -> dict[str, Any]:
    """The values of TargetSFTConfig for a phase, apart from where it writes; recipes/demo.yaml lists the same."""
    return {
        "target": target,
        **kwargs,
        "per_device_train_batch_size": phase.batch,
        "learning_rate": phase.learning_rate,
        "seed": seed,
        **TRAINING,
    }


class Report(TrainerCallback):
    """Tells the progress bar about every optimiser step."""

    def __init__(self, advance: Advance) -> None:
        self.advance = advance

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """One step is done."""
        self.advance(1)
