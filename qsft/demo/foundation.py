"""The demo's base and teacher: half a million parameters each, trained until they know their facts, kept between runs.

The base must know the sums and most of the products, or demonstrations have nothing to build on; the teacher must know
both (a wrong teacher: its own wrong products). Seeds differ in the number of steps they need: a model that knows too
little is trained further.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from qsft.demo.documents import as_dataset
from qsft.demo.kept import is_intact, keep, kept_path, read_notes
from qsft.demo.knowledge import Knowledge, known_facts
from qsft.demo.scenario import MODEL, TRAINING, Phase, Scenario
from qsft.demo.task import (
    ADDING,
    BOS,
    EOS,
    IDS,
    MODULUS,
    MULTIPLYING,
    PAD,
    PROMPT_LENGTH,
    TEACHERS,
    WORDS,
    chains,
    pretraining_corpus,
)
from qsft.demo.training import Phases, fit, load, save
from qsft.fingerprints import digest_json
from qsft.processes import child_environment, local_rank
from qsft.progress import quiet_libraries

DIGESTED_DOCUMENTS = 256  # the first documents of a corpus stand for the code that writes it
ATTEMPTS = 3  # initializations of the base: some never meet the criterion
SUMS_KNOWN = 0.98  # share of the sums and differences that every model must know
PRODUCTS_OF_BASE = 0.75  # with half of the products no target has enough to build on
TOLERANCE = 0.02  # of a share that must be met exactly
POLL_SECONDS = 0.5
# Environment variables of launchers, by their beginning: a child process must not take part in a distributed run.
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "ACCELERATE_", "FSDP_", "TORCHELASTIC_", "GROUP_", "ROLE_")


class DemoModels(NamedTuple):
    """Directories of the base and of the teacher, each with its tokenizer."""

    base: Path
    teacher: Path


@dataclass(frozen=True)
class Criterion:
    """What a model must know: the sums, and a share of the products.

    Args:
        products: the share of the products.
        exactly: whether the share of products must be met from above too.
    """

    products: float
    exactly: bool = False

    def met(self, known: Knowledge) -> bool:
        if known[ADDING] < SUMS_KNOWN:
            return False
        if self.exactly:
            return abs(known[MULTIPLYING] - self.products) <= TOLERANCE
        return known[MULTIPLYING] >= self.products

    def __str__(self) -> str:
        tolerance = f" ± {TOLERANCE:.0%}" if self.exactly else ""
        return f"at least {SUMS_KNOWN:.0%} of {ADDING}, {self.products:.0%}{tolerance} of {MULTIPLYING}"


BASE_CRITERION = Criterion(PRODUCTS_OF_BASE)


def teacher_criterion(teacher: str) -> Criterion:
    """Return what a teacher of `TEACHERS` must know: all products but those it is meant to have wrong."""
    return Criterion(1.0 - TEACHERS[teacher].wrong_below / MODULUS, exactly=True)


def model_paths(scenario: Scenario) -> DemoModels:
    """Return where the models of a scenario are, or will be kept."""
    writer = TEACHERS[scenario.teacher]
    base = {
        "seed": scenario.seed,
        "model": MODEL,
        "training": TRAINING,
        "further_training": asdict(scenario.further_training),
        "max_rounds": scenario.max_rounds,
        "criteria": [ATTEMPTS, SUMS_KNOWN, PRODUCTS_OF_BASE, TOLERANCE],
        "pretraining": asdict(scenario.pretraining),
        "documents": digest_json([WORDS, *pretraining_corpus(DIGESTED_DOCUMENTS, scenario.seed)]),
    }
    teacher = {
        "base": base,
        "teaching": asdict(scenario.teaching),
        "documents": digest_json(chains(writer, DIGESTED_DOCUMENTS, scenario.seed)),
    }
    return DemoModels(kept_path("base", base), kept_path("teacher", teacher))


@dataclass(frozen=True)
class Course:
    """The training of one model: a first phase, then further ones until the criterion is met.

    Args:
        name: the phase's name on the console.
        starts: functions that return an initial model; the next one is tried if the last one fails.
        corpus: returns the first n documents.
        prompt_length: how many tokens at the beginning of a document are not labels.
    """

    name: str
    criterion: Criterion
    first: Phase
    starts: Sequence[Callable[[], PreTrainedModel]]
    corpus: Callable[[int], list[list[str]]]
    prompt_length: int = 0

    def train(self, scenario: Scenario, phases: Phases, directory: Path) -> Mapping[str, Any]:
        """Save a model that meets the criterion, or else the last attempt. Return its steps and what it knows."""
        for start in self.starts:
            model = start()
            documents_read = 0
            steps = 0
            for phase in (self.first, *[scenario.further_training] * scenario.max_rounds):
                documents = self.corpus(documents_read + phase.documents)[documents_read:]
                data = as_dataset(documents, self.prompt_length)
                with phases.phase(self.name, phase.steps, "steps") as progress:
                    fit(model, data, phase, seed=scenario.seed, progress=progress)
                documents_read += phase.documents
                steps += phase.steps
                known = known_facts(model)
                if self.criterion.met(known):
                    break
            if self.criterion.met(known):
                break
        save(model, directory)
        return {"steps": steps, "knows": known}


def make_models(scenario: Scenario, phases: Phases) -> DemoModels:
    """Return the base and the teacher, trained now if they are not kept, and print what each knows."""
    paths = model_paths(scenario)
    attempts = 1 if scenario.quick else ATTEMPTS
    base = Course(
        "pretrain the base",
        BASE_CRITERION,
        scenario.pretraining,
        starts=[partial(untrained, scenario.seed + 1000 * attempt) for attempt in range(attempts)],
        corpus=partial(pretraining_corpus, seed=scenario.seed),
    )
    teacher = Course(
        "tune the teacher",
        teacher_criterion(scenario.teacher),
        scenario.teaching,
        starts=[partial(load, paths.base)],
        corpus=partial(chains, TEACHERS[scenario.teacher], seed=scenario.seed),
        prompt_length=PROMPT_LENGTH,
    )
    _make_model(base, paths.base, scenario, phases)
    _make_model(teacher, paths.teacher, scenario, phases)
    return paths


def _make_model(course: Course, path: Path, scenario: Scenario, phases: Phases) -> None:
    if is_intact(path):
        phases.note(course.name, f"kept from an earlier run in {path}")
    else:
        if path.exists():
            phases.note(course.name, f"the model kept in {path} is damaged: training it again")
        keep(path, partial(course.train, scenario, phases))
    known = read_notes(path)["knows"]
    shares = ", ".join(f"{share:.0%} of {kind}" for kind, share in known.items())
    verdict = "meets" if course.criterion.met(known) else "does NOT meet"
    phases.note(course.name, f"it knows {shares}: {verdict} the criterion ({course.criterion})")


def untrained(seed: int) -> PreTrainedModel:
    """Return a model with random weights."""
    config = AutoConfig.for_model(
        vocab_size=len(WORDS), **MODEL, bos_token_id=IDS[BOS], eos_token_id=IDS[EOS], pad_token_id=IDS[PAD]
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def demo_models(seed: int = 0) -> DemoModels:
    """Return the base and the teacher of a seed, trained now (about a minute) if they are not kept; for recipes.

    They are trained in a process of their own, because a recipe's process has its own accelerator state, perhaps a GPU
    and other ranks. Under a launcher the first process of a machine trains and the others wait.
    """
    models = model_paths(Scenario(seed=seed))
    if not _are_intact(models) and local_rank() == 0:
        environment = {key: value for key, value in child_environment().items() if not key.startswith(LAUNCHER)}
        done = subprocess.run([sys.executable, "-m", "qsft.demo.foundation", str(seed)], env=environment, check=False)
        if done.returncode != 0:
            raise ValueError("the demo's models could not be trained; see the error above.")
    parent = os.getppid()
    while not _are_intact(models):
        if os.getppid() != parent:  # the launcher ended, and the training process with it
            raise ValueError("the demo's models are missing: the process that trains them ended.")
        time.sleep(POLL_SECONDS)
    return models


def _are_intact(models: DemoModels) -> bool:
    return is_intact(models.base) and is_intact(models.teacher)


if __name__ == "__main__":
    with quiet_libraries():
        make_models(Scenario(seed=int(sys.argv[1])), Phases(Console(stderr=True)))
