"""Every number of the demo in one place; what is kept between runs is keyed by all of them that made it."""

from dataclasses import dataclass, replace
from typing import Any

from qsft.demo.world import DEMONSTRATOR, TEACHER, WRONG_TEACHER, Writer


@dataclass(frozen=True)
class Phase:
    """One training: optimiser steps, documents per step, peak learning rate."""

    steps: int
    batch: int
    learning_rate: float

    @property
    def documents(self) -> int:
        """Documents it reads, each once."""
        return self.steps * self.batch


@dataclass(frozen=True)
class Settings:
    """One world: who writes what, how long everybody trains, what is measured."""

    seed: int = 0
    noise: float = DEMONSTRATOR.slips
    wrong_teacher: bool = False
    pretraining: Phase = Phase(420, 48, 2e-3)
    teaching: Phase = Phase(120, 64, 1e-3)
    fine_tuning: Phase = Phase(80, 64, 3e-3)
    top_k: int = 16
    problems: int = 256
    samples: int = 16

    def __post_init__(self) -> None:
        if not 0.0 <= self.noise <= 1.0:
            raise ValueError(f"noise={self.noise} is the probability that a result is a slip: choose it from 0 to 1.")

    @property
    def teacher(self) -> Writer:
        """Who writes what the teacher is tuned on."""
        return WRONG_TEACHER if self.wrong_teacher else TEACHER

    @property
    def demonstrator(self) -> Writer:
        """Who writes the demonstrations."""
        return replace(DEMONSTRATOR, slips=self.noise)

    def quick(self) -> "Settings":
        """The same world for a smoke test: a few steps of everything, so nothing is learnt."""
        return replace(
            self,
            pretraining=replace(self.pretraining, steps=6),
            teaching=replace(self.teaching, steps=3),
            fine_tuning=replace(self.fine_tuning, steps=2),
            problems=8,
            samples=4,
        )


MODEL: dict[str, Any] = {
    "model_type": "llama",  # not qwen2: beside its config AutoTokenizer takes any tokenizer for Qwen's own
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
}

# What all trainings share, as TargetSFTConfig names it. TRL's defaults are made for large models on GPUs; here half
# precision, recomputed activations and checkpoints would only cost time.
TRAINING: dict[str, Any] = {
    "num_train_epochs": 1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "adam_beta2": 0.98,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "bf16": False,
    "gradient_checkpointing": False,
    "use_cpu": True,
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
