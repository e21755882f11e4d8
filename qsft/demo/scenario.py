"""Every number of the demo in one place: worlds, methods, the documents that follow, and the one way to train on them.

What is kept between runs is keyed by all the numbers that made it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, PreTrainedModel, PrinterCallback, TrainerCallback

from qsft.demo import world
from qsft.demo.world import ClockProblem, Writer, make_tokenizer
from qsft.progress import Progress
from qsft.recipe.keys import read_word
from qsft.targets.registry import make_target
from qsft.targets.target import Target
from qsft.targets.view import IGNORED
from qsft.teacher.cache import TeacherCache
from qsft.train.config import TargetSFTConfig
from qsft.train.trainer import TargetSFTTrainer


@dataclass(frozen=True)
class Phase:
    """One training: optimiser steps, documents per step (each read once), peak learning rate."""

    steps: int
    batch: int
    learning_rate: float

    @property
    def documents(self) -> int:
        return self.steps * self.batch


@dataclass(frozen=True)
class Scenario:
    """One world: who writes what, how long everybody trains, what is measured.

    `more` is what the base and the teacher read again and again, `rounds` times at most, until they know their facts.
    """

    seed: int = 0
    noise: float = world.DEMONSTRATOR.slips
    teacher: str = "right"
    pretraining: Phase = Phase(420, 48, 3e-3)
    teaching: Phase = Phase(120, 64, 1e-3)
    more: Phase = Phase(120, 48, 2e-3)
    rounds: int = 6
    fine_tuning: Phase = Phase(80, 64, 3e-3)
    top_k: int = 16
    problems: int = 256
    samples: int = 16
    quick: bool = False

    def __post_init__(self) -> None:
        if self.teacher not in world.TEACHERS:
            raise ValueError(f"teacher={self.teacher!r} is not known. Choose one of {', '.join(world.TEACHERS)}.")
        if not 0.0 <= self.noise <= 1.0:
            raise ValueError(f"noise={self.noise} is the probability that a result is a slip: choose it from 0 to 1.")

    @property
    def demonstrator(self) -> Writer:
        return replace(world.DEMONSTRATOR, slips=self.noise)

    @property
    def evaluation(self) -> list[ClockProblem]:
        """The problems that models are measured on; the demonstrations leave them out."""
        return world.evaluation_problems(self.problems, self.seed)

    def shortened(self) -> "Scenario":
        """The same world for a smoke test: a few steps of everything, so nothing is learnt."""
        short = {"pretraining": 6, "teaching": 3, "fine_tuning": 2}
        phases: dict[str, Any] = {name: replace(getattr(self, name), steps=steps) for name, steps in short.items()}
        return replace(self, **phases, rounds=0, problems=8, samples=4, quick=True)


WORLDS: dict[str, Scenario] = {
    "right": Scenario(),
    "wrong": Scenario(teacher="wrong"),
    "half-wrong": Scenario(teacher="half"),
    "clean": Scenario(noise=0.0),
}
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

# ---- methods ----

RATE = "lr"  # in the place of a hyper-parameter: the method's own learning rate
CALM = {"dft": 1e-3}  # the p-loss degrades at the others' learning rate


@dataclass(frozen=True)
class Method:
    """A row of the table with its hyper-parameters.

    control  what it is if it is shown, but not ranked as a method of the paper
    curate   the data-level method that makes its demonstrations, if they are not the demonstrators' own
    """

    label: str
    row: str
    hparams: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    control: str = ""
    curate: str | None = None

    @property
    def target(self) -> Target:
        return make_target(self.row, **self.hparams)

    @property
    def slug(self) -> str:
        hparams = [f"{key}{value}" for key, value in self.hparams.items()]
        if self.learning_rate not in (None, CALM.get(self.row)):
            hparams.append(f"{RATE}{self.learning_rate:g}")
        return "-".join([*filter(None, [self.curate]), self.row, *hparams])


METHODS = (
    Method("SFT", "sft"),
    Method("SFT(p)", "dft", learning_rate=CALM["dft"]),
    Method("KD 0.8", "kd_hybrid", {"c": 0.8}),
    Method("KD 1.0", "kd"),
    Method("KD sharpened", "kd", {"temperature": 0.5}, control="the teacher at temperature 0.5"),
    Method("Beyond log", "beyond_log", {"alpha": 0.5}, control="a loss without a teacher"),
    Method("Target-SFT", "target_sft", {"eta": 0.5}),
)
DATA_LEVEL = (
    Method("RFT", "sft", curate="rft"),
    Method("STaR", "sft", curate="star"),
    Method("GRAPE", "sft", curate="grape"),
    # Only its critical tokens are trained: at the others' learning rate everything between them is forgotten.
    Method("CFT", "cft", learning_rate=2e-4, curate="critical"),
)


def parse_methods(words: list[str]) -> tuple[Method, ...]:
    """Methods as the command line writes them: `sft`, `target_sft:eta=0.2`, `kd:temperature=0.5,lr=1e-3`."""
    methods = tuple(map(_parse, words))
    repeated = [label for label, count in Counter(method.label for method in methods).items() if count > 1]
    if repeated:
        raise ValueError(f"--targets names {', '.join(repeated)} twice. Name each once.")
    return methods


def _parse(word: str) -> Method:
    row, _, rest = word.partition(":")
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, _, value = part.partition("=")
        if not value:
            raise ValueError(f"--targets {word!r}: {part!r} is not key=value. Write for example target_sft:eta=0.2.")
        given[key] = read_word(value)
    rate = given.pop(RATE, CALM.get(row))
    method = Method(word, row, given, float(rate) if rate is not None else None)
    same = (known for known in METHODS if known.target == method.target and known.learning_rate == rate)
    return next(same, method)


def find_data_level(words: list[str]) -> tuple[Method, ...]:
    """Data-level methods by the names `qsft curate` knows, separated by spaces or commas."""
    known = {str(method.curate): method for method in DATA_LEVEL}
    names = dict.fromkeys(name for word in words for name in word.split(",") if name)
    for name in names:
        if name not in known:
            raise ValueError(
                f"--methods {name!r} is not known. Choose of {', '.join(known)} (self_distill needs a base that has "
                "read documents long enough for a solution and its rewriting; the demo's has not)."
            )
    return tuple(known[name] for name in names)


# ---- documents ----


def demonstrations(scenario: Scenario) -> Dataset:
    """What the students are tuned on: noisy solutions to problems that nobody is measured on."""
    held_out = frozenset(scenario.evaluation)
    count = scenario.fine_tuning.documents
    return as_dataset(world.chains(scenario.demonstrator, count, scenario.seed, without=held_out))


def recipe_rows(seed: int) -> Dataset:
    return demonstrations(Scenario(seed=seed))


def as_dataset(documents: Sequence[list[str]], prompt: int = world.PROMPT_LENGTH) -> Dataset:
    """input_ids, labels, and for `cft` which tokens are critical: the results, where a chain is right or wrong."""
    ids = [world.encode(document) for document in documents]
    labels = [[IGNORED] * prompt + document[prompt:] for document in ids]
    critical = [[int(before in world.EQUALS) for before in ["", *document[:-1]]] for document in documents]
    return Dataset.from_dict({"input_ids": ids, "labels": labels, "critical": critical})


# ---- training ----


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
    steps: Any = TrainerCallback()
    steps.on_step_end = lambda *_, **__: progress.advance()
    with TemporaryDirectory() as scratch:
        trainer = TargetSFTTrainer(
            model,
            TargetSFTConfig(output_dir=scratch, **config_values(phase, seed, **target)),
            teacher=teacher,
            train_dataset=data,
            processing_class=make_tokenizer(),
            callbacks=[steps],
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
