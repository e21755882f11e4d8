"""The base and the teacher: half a million parameters each, trained to a stated criterion, and kept between runs.

The base must know the sums and most of the products, or there is nothing for demonstrations to build on; the teacher
must know both (a wrong one, in its own way). Seeds come to know them at different steps: whoever falls short reads on.
A kept model lies in a directory named by a digest of everything that made it, whole or not there at all.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from qsft.demo import world
from qsft.demo.measure import Knowledge, knowledge
from qsft.demo.scenario import MODEL, TRAINING, Phase, Phases, Scenario, as_dataset, fit, load, save
from qsft.demo.world import ADDING, MODULUS, MULTIPLYING, TEACHERS, WORDS, chains, pretraining_corpus
from qsft.files import read_json, write_json
from qsft.fingerprints import digest_json, file_digest
from qsft.processes import child_environment, local_rank
from qsft.progress import quiet_libraries

FIRST = 256
ATTEMPTS = 3  # initialisations: some never get there
KNOWN, SOME, NEAR = 0.98, 0.75, 0.02  # shares of the facts of a kind
RECORD = "made_of.json"
POLL_SECONDS = 0.5
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "ACCELERATE_", "FSDP_", "TORCHELASTIC_", "GROUP_", "ROLE_")


class DemoModels(NamedTuple):
    """Directories of the base and of the teacher, each with its tokenizer."""

    base: Path
    teacher: Path


@dataclass(frozen=True)
class Criterion:
    """What a model must know: the sums, and a share of the products or (`exactly`) about this share and no more."""

    products: float
    exactly: bool = False

    def met(self, known: Knowledge) -> bool:
        products = known[MULTIPLYING]
        enough = abs(products - self.products) <= NEAR if self.exactly else products >= self.products
        return known[ADDING] >= KNOWN and enough

    def __str__(self) -> str:
        near = f" ± {NEAR:.0%}" if self.exactly else ""
        return f"at least {KNOWN:.0%} of {ADDING}, {self.products:.0%}{near} of {MULTIPLYING}"


BASE_CRITERION = Criterion(SOME)  # with half of the products no target has enough to build on


def teacher_criterion(teacher: str) -> Criterion:
    return Criterion(1.0 - TEACHERS[teacher].wrong_below / MODULUS, exactly=True)


def places(scenario: Scenario) -> DemoModels:
    """Where the models of a scenario are, or will be; the first documents stand for the code that writes them."""
    seed, writer = scenario.seed, TEACHERS[scenario.teacher]
    more = [asdict(scenario.more), scenario.rounds, ATTEMPTS, KNOWN, SOME, NEAR]
    shared = {"seed": seed, "model": MODEL, "training": TRAINING, "more": more}
    read, taught = pretraining_corpus(FIRST, seed), chains(writer, FIRST, seed)
    base = {**shared, "pretraining": asdict(scenario.pretraining), "documents": digest_json([WORDS, *read])}
    teacher = {"base": base, "teaching": asdict(scenario.teaching), "documents": digest_json(taught)}
    return DemoModels(place_of("base", base), place_of("teacher", teacher))


class Course(NamedTuple):
    """How a model comes about: from one of several starts it reads `documents`, first in one phase, then more of them,
    until it knows enough; of each document the first `prompt` tokens are no labels."""

    name: str
    criterion: Criterion
    first: Phase
    starts: Sequence[Callable[[], PreTrainedModel]]
    documents: Callable[[int], list[list[str]]]  # the first so many
    prompt: int = 0

    def train(self, scenario: Scenario, phases: Phases, directory: Path) -> Mapping[str, Any]:
        """Save a model that knows what it should, or the last attempt; its steps and what it knows."""
        for start, phase in product(self.starts, [self.first] + [scenario.more] * scenario.rounds):
            if phase is self.first:
                model, read, steps = start(), 0, 0
            data = as_dataset(self.documents(read + phase.documents)[read:], self.prompt)
            with phases.phase(self.name, phase.steps, "steps") as progress:
                fit(model, data, phase, seed=scenario.seed, progress=progress)
            read, steps, known = read + phase.documents, steps + phase.steps, knowledge(model)
            if self.criterion.met(known):
                break
        save(model, directory)
        return {"steps": steps, "knows": known}


def make_models(scenario: Scenario, phases: Phases) -> DemoModels:
    """The base and the teacher, trained now if they are not kept, and in a line each what they know."""
    models, seed = places(scenario), scenario.seed
    fresh = [partial(untrained, seed + 1000 * attempt) for attempt in range(1 if scenario.quick else ATTEMPTS)]
    corpus, lessons = partial(pretraining_corpus, seed=seed), partial(chains, TEACHERS[scenario.teacher], seed=seed)
    tuned, own = [partial(load, models.base)], teacher_criterion(scenario.teacher)
    base = Course("pretrain the base", BASE_CRITERION, scenario.pretraining, fresh, corpus)
    teacher = Course("tune the teacher", own, scenario.teaching, tuned, lessons, world.PROMPT_LENGTH)
    for course, path in zip((base, teacher), models):
        if is_intact(path):
            phases.say(course.name, f"kept from an earlier run in {path}")
        else:
            if path.exists():
                phases.say(course.name, f"what was kept in {path} is damaged: made again")
            keep(path, partial(course.train, scenario, phases))
        known = read_json(path / RECORD, remedy="Delete the directory; it is made again.")["remembered"]["knows"]
        said = ", ".join(f"{share:.0%} of {kind}" for kind, share in known.items())
        verdict = "as it should" if course.criterion.met(known) else "NOT as it should"
        phases.say(course.name, f"it knows {said}: {verdict} ({course.criterion})")
    return models


def untrained(seed: int) -> PreTrainedModel:
    ends: dict[str, Any] = {f"{name}_token_id": world.IDS[f"<{name}>"] for name in ("bos", "eos", "pad")}
    config = AutoConfig.for_model(vocab_size=len(WORDS), **MODEL, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


# ---- kept between runs ----


def place_of(kind: str, ingredients: Mapping[str, Any]) -> Path:
    """The directory for something made of `ingredients`, in $QSFT_HOME/demo or the user's cache directory."""
    home = os.environ.get("QSFT_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "qsft")
    return Path(home, "demo").expanduser() / f"{kind}-{digest_json(ingredients)[:16]}"


def is_intact(path: Path) -> bool:
    """Whether the directory holds every file that was put there, byte for byte."""
    try:
        files = read_json(path / RECORD, remedy="")["files"]
        return bool(files) and all(file_digest(path / name) == known for name, known in files.items())
    except (OSError, ValueError, KeyError, AttributeError):  # missing, not JSON, or not such a record
        return False


def keep(path: Path, save: Callable[[Path], Mapping[str, Any]]) -> None:
    """Let `save` fill a directory and put it at `path` in one step; what it returns is remembered in the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
        unfinished = Path(scratch, path.name)
        unfinished.mkdir()
        said = save(unfinished)
        files = {str(f.relative_to(unfinished)): file_digest(f) for f in unfinished.rglob("*") if f.is_file()}
        write_json(unfinished / RECORD, {"remembered": said, "files": files})
        if path.exists() and not is_intact(path):
            shutil.rmtree(path)
        try:
            unfinished.rename(path)
        except OSError:
            if not is_intact(path):  # unless another process was first, with the same thing
                raise


# ---- for recipes ----


def demo_models(seed: int = 0) -> DemoModels:
    """The base and the teacher of a seed, built now (about a minute) if they are not kept from an earlier run.

    They are built in a process of their own: a recipe's has its own accelerator state, perhaps a GPU and other
    processes beside it. Under a launcher the first process of a machine builds and the others wait.
    """
    models = places(Scenario(seed=seed))
    if not all(map(is_intact, models)) and local_rank() == 0:
        environment = {key: value for key, value in child_environment().items() if not key.startswith(LAUNCHER)}
        done = subprocess.run([sys.executable, "-m", "qsft.demo.foundation", str(seed)], env=environment, check=False)
        if done.returncode:
            raise ValueError("the demo's models could not be built; the reason stands above.")
    parent = os.getppid()
    while not all(map(is_intact, models)):
        if os.getppid() != parent:  # the launcher is gone, and with it whoever was building
            raise ValueError("the demo's models did not appear: the process that builds them ended.")
        time.sleep(POLL_SECONDS)
    return models


if __name__ == "__main__":
    with quiet_libraries():
        make_models(Scenario(seed=int(sys.argv[1])), Phases(Console(stderr=True)))
