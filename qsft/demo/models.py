"""The base and the teacher: half a million parameters each, made once and kept."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from qsft.demo import store
from qsft.demo.data import pretraining_data, teaching_data
from qsft.demo.fit import fit
from qsft.demo.progress import Phases
from qsft.demo.settings import MODEL, TRAINING, Phase, Settings
from qsft.demo.vocabulary import BOS, EOS, IDS, PAD, WORDS, make_tokenizer
from qsft.demo.world import chains, pretraining_corpus

FIRST = 256


def base_path(settings: Settings) -> Path:
    """Where the base of these settings is, or will be."""
    return store.place_of("base", _base_ingredients(settings))


def teacher_path(settings: Settings) -> Path:
    """Where the teacher of these settings is, or will be."""
    return store.place_of("teacher", _teacher_ingredients(settings))


def make_base(settings: Settings, phases: Phases) -> Path:
    """The directory of the base, pretrained now if it is not kept."""

    def pretrain(advance: Callable[[int], object], scratch: Path) -> PreTrainedModel:
        data = pretraining_data(settings)
        model = untrained(settings.seed)
        return fit(model, data, settings.pretraining, seed=settings.seed, directory=scratch, advance=advance)

    ingredients = _base_ingredients(settings)
    return _make("pretrain the base", base_path(settings), ingredients, settings.pretraining, pretrain, phases)


def make_teacher(settings: Settings, base: Path, phases: Phases) -> Path:
    """The directory of the teacher, tuned now from the base if it is not kept."""

    def teach(advance: Callable[[int], object], scratch: Path) -> PreTrainedModel:
        data = teaching_data(settings)
        return fit(load(base), data, settings.teaching, seed=settings.seed, directory=scratch, advance=advance)

    ingredients = _teacher_ingredients(settings)
    return _make("tune the teacher", teacher_path(settings), ingredients, settings.teaching, teach, phases)


def load(path: Path) -> PreTrainedModel:
    """A model of the demo."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def save(model: PreTrainedModel, path: Path) -> None:
    """Write a model with its tokenizer, as every command of qsft reads it."""
    model.save_pretrained(path)
    make_tokenizer().save_pretrained(path)


def untrained(seed: int) -> PreTrainedModel:
    """A random model of the demo's size."""
    ends: dict[str, Any] = {"bos_token_id": IDS[BOS], "eos_token_id": IDS[EOS], "pad_token_id": IDS[PAD]}
    config = AutoConfig.for_model(vocab_size=len(WORDS), **MODEL, **ends)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def _make(
    name: str,
    path: Path,
    ingredients: dict[str, Any],
    phase: Phase,
    train: Callable[[Callable[[int], object], Path], PreTrainedModel],
    phases: Phases,
) -> Path:
    if store.is_intact(path):
        phases.skip(name, f"kept from an earlier run in {path}")
        return path
    if path.exists():
        phases.skip(name, f"what was kept in {path} is damaged: made again")
    with phases.phase(name, phase.steps, "steps") as advance, TemporaryDirectory() as scratch:
        store.keep(path, ingredients, lambda directory: save(train(advance, Path(scratch)), directory))
    return path


def _base_ingredients(settings: Settings) -> dict[str, Any]:
    """All that decides the base's weights; the first documents stand for the code that writes them."""
    documents = [list(WORDS), *pretraining_corpus(FIRST, settings.seed)]
    return {
        "seed": settings.seed,
        "model": MODEL,
        "training": TRAINING,
        "pretraining": asdict(settings.pretraining),
        "documents": _digest(documents),
    }


def _teacher_ingredients(settings: Settings) -> dict[str, Any]:
    return {
        "base": _base_ingredients(settings),
        "teaching": asdict(settings.teaching),
        "documents": _digest(chains(settings.teacher, FIRST, settings.seed)),
    }


def _digest(documents: list[list[str]]) -> str:
    return hashlib.blake2b(json.dumps(documents).encode(), digest_size=8).hexdigest()
