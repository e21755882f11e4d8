"""The settings of the demo: scenarios, the models' shape and what all trainings share.

A scenario says how noisy the demonstrations are, whether the teacher is right, how long every phase trains and what is
measured. What is kept between runs is keyed by the settings that made it.
"""

from dataclasses import dataclass, replace
from typing import Any

from qsft.demo.task import DEMONSTRATOR, TEACHERS, ClockProblem, Writer, evaluation_problems


@dataclass(frozen=True)
class Phase:
    """One training: optimizer steps, documents per step (each is read once), peak learning rate."""

    steps: int
    batch: int
    learning_rate: float

    @property
    def documents(self) -> int:
        return self.steps * self.batch


@dataclass(frozen=True)
class Scenario:
    """One setting of the demo.

    Args:
        noise: probability that a result in the demonstrations is a slip.
        teacher: a name of `TEACHERS`.
        further_training: more training of the base and the teacher, repeated until they know their facts.
        max_rounds: how often `further_training` is repeated at most.
        problems: number of problems in the evaluation.
        samples: responses per problem.
        quick: a smoke test of a few steps, see `shortened`.
    """

    seed: int = 0
    noise: float = DEMONSTRATOR.slips
    teacher: str = "right"
    pretraining: Phase = Phase(420, 48, 3e-3)
    teaching: Phase = Phase(120, 64, 1e-3)
    further_training: Phase = Phase(120, 48, 2e-3)
    max_rounds: int = 6
    fine_tuning: Phase = Phase(80, 64, 3e-3)
    top_k: int = 16
    problems: int = 256
    samples: int = 16
    quick: bool = False

    def __post_init__(self) -> None:
        if self.teacher not in TEACHERS:
            raise ValueError(f"there is no teacher {self.teacher!r} in the demo. Choose one of {', '.join(TEACHERS)}.")
        if not 0.0 <= self.noise <= 1.0:
            raise ValueError(f"noise is the probability of a slip and must be from 0 to 1, got {self.noise}.")

    @property
    def demonstrator(self) -> Writer:
        return replace(DEMONSTRATOR, slips=self.noise)

    @property
    def evaluation(self) -> list[ClockProblem]:
        """The problems of the evaluation; the demonstrations leave them out."""
        return evaluation_problems(self.problems, self.seed)

    def shortened(self) -> "Scenario":
        """Return the same scenario as a smoke test: a few steps of everything, too few to learn anything."""
        return replace(
            self,
            pretraining=replace(self.pretraining, steps=6),
            teaching=replace(self.teaching, steps=3),
            fine_tuning=replace(self.fine_tuning, steps=2),
            max_rounds=0,
            problems=8,
            samples=4,
            quick=True,
        )


SCENARIOS: dict[str, Scenario] = {
    "right": Scenario(),
    "wrong": Scenario(teacher="wrong"),
    "half-wrong": Scenario(teacher="half"),
    "clean": Scenario(noise=0.0),
}
MODEL: dict[str, Any] = {
    # not qwen2: AutoTokenizer takes any tokenizer beside a Qwen2 config for Qwen's own
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "initializer_range": 0.05,
}
# Fields of TargetSFTConfig that all trainings share. TRL's defaults are made for large models on GPUs; here half
# precision, gradient checkpointing and checkpoints would only cost time.
TRAINING: dict[str, Any] = {
    "num_train_epochs": 1,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,
    "adam_beta2": 0.98,
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "bf16": False,
    "gradient_checkpointing": False,
    "head_tile_mib": 512.0,  # all tokens at a time: another default would sum in another order and change the figures
    "use_cpu": True,
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
