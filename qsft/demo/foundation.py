"""The base and the teacher: half a million parameters each, trained to a stated criterion, and kept.

The base must know the sums and some of the products, or there is nothing for demonstrations to build on; the teacher
must know both (a wrong one, in its own way). Seeds come to know them at different steps: whoever falls short reads on.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from qsft.demo import kept
from qsft.demo.contexts import Knowledge, knowledge
from qsft.demo.scenario import MODEL, TRAINING, Phase, Scenario, as_dataset
from qsft.demo.solutions import ADDING, MULTIPLYING
from qsft.demo.training import Phases, fit, load, save
from qsft.demo.vocabulary import BOS, EOS, IDS, PAD, WORDS
from qsft.demo.world import PROMPT_LENGTH, TEACHERS, chains, pretraining_corpus
from qsft.fingerprints import digest_json

FIRST = 256
KNOWN, SOME, MOST = 0.98, 0.40, 0.95  # shares of the facts of a kind


class DemoModels(NamedTuple):
    """Directories of the base and of the teacher, each with its tokenizer."""

    base: Path
    teacher: Path


class Course(NamedTuple):
    """How a model is made: from what, what it reads, and what it must know at the end."""

    name: str
    path: Path
    start: Callable[[], PreTrainedModel]
    documents: Callable[[int], list[list[str]]]
    prompt: int
    phase: Phase
    suffices: Callable[[Knowledge], bool]


def base_suffices(known: Knowledge) -> bool:
    """Whether a base knows the sums, and of the products some but not nearly all."""
    return known[ADDING] >= KNOWN and SOME <= known[MULTIPLYING] <= MOST


def teacher_suffices(known: Knowledge, teacher: str) -> bool:
    """Whether a teacher knows the sums, and of the products as many as it is right about."""
    right = {"right": 1.0, "half": 0.5, "wrong": 0.0}[teacher]
    return known[ADDING] >= KNOWN and abs(known[MULTIPLYING] - right) <= 0.02


def courses(scenario: Scenario) -> tuple[Course, Course]:
    """How base and teacher are made; the first documents stand for the code that writes them."""
    seed, writer = scenario.seed, TEACHERS[scenario.teacher]
    shared = {"seed": seed, "model": MODEL, "training": TRAINING, "more": [asdict(scenario.more), scenario.rounds]}
    read, taught = pretraining_corpus(FIRST, seed), chains(writer, FIRST, seed)
    base = {**shared, "pretraining": asdict(scenario.pretraining), "documents": digest_json([WORDS, *read])}
    teacher = {"base": base, "teaching": asdict(scenario.teaching), "documents": digest_json(taught)}
    place = kept.place_of("base", base)
    return (
        Course(
            name="pretrain the base",
            path=place,
            start=lambda: untrained(seed),
            documents=lambda count: pretraining_corpus(count, seed),
            prompt=0,
            phase=scenario.pretraining,
            suffices=base_suffices,
        ),
        Course(
            name="tune the teacher",
            path=kept.place_of("teacher", teacher),
            start=lambda: load(place),
            documents=lambda count: chains(writer, count, seed),
            prompt=PROMPT_LENGTH,
            phase=scenario.teaching,
            suffices=lambda known: teacher_suffices(known, scenario.teacher),
        ),
    )


def places(scenario: Scenario) -> DemoModels:
    """Where the models of a scenario are, or will be."""
    return DemoModels(*(course.path for course in courses(scenario)))


def make_models(scenario: Scenario, phases: Phases) -> DemoModels:
    """The base and the teacher, trained now if they are not kept, and in a line each what they know."""
    for course in courses(scenario):
        if kept.is_intact(course.path):
            phases.say(course.name, f"kept from an earlier run in {course.path}")
        else:
            if course.path.exists():
                phases.say(course.name, f"what was kept in {course.path} is damaged: made again")
            kept.keep(course.path, partial(_make, course, scenario, phases))
        known = kept.remembered(course.path)["knows"]
        said = ", ".join(f"{share:.0%} of {kind}" for kind, share in known.items())
        phases.say(course.name, f"it knows {said}: {'as it should' if course.suffices(known) else 'NOT as it should'}")
    return places(scenario)


def untrained(seed: int) -> PreTrainedModel:
    """A random model of the demo's size."""
    ends: dict[str, Any] = {"bos_token_id": IDS[BOS], "eos_token_id": IDS[EOS], "pad_token_id": IDS[PAD]}
    config = AutoConfig.for_model(vocab_size=len(WORDS), **MODEL, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def _make(course: Course, scenario: Scenario, phases: Phases, directory: Path) -> Mapping[str, Any]:
    """Train in the first phase, then in rounds of more until the model knows what it should."""
    model, rounds = course.start(), [course.phase] + [scenario.more] * scenario.rounds
    data = as_dataset(course.documents(sum(phase.documents for phase in rounds)), course.prompt)
    read, steps = 0, 0
    known: Knowledge = {}
    for phase in rounds:
        with phases.phase(course.name, phase.steps, "steps") as progress:
            part = data.select(range(read, read + phase.documents))
            fit(model, part, phase, seed=scenario.seed, progress=progress)
        read, steps, known = read + phase.documents, steps + phase.steps, knowledge(model)
        if course.suffices(known):
            break
    save(model, directory)
    return {"steps": steps, "knows": known}
