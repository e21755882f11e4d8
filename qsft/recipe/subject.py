"""What a picture of `qsft explore` is made of: a recipe's model, documents and teacher, or a model and a cache."""

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from transformers import AutoModelForCausalLM, AutoTokenizer

from qsft.data.read import load_documents
from qsft.recipe.job import configure
from qsft.recipe.recipe_file import DEFAULT_TARGET, read_recipe
from qsft.targets.zoo import make_target
from qsft.teacher.documents import Documents
from qsft.teacher.lookup import TeacherCache
from qsft.teacher.source import default_device


class Subject(NamedTuple):
    """A student, what it is shown, and what it is to learn from."""

    model: Any
    tokenizer: Any
    documents: Iterable[Mapping[str, Any]]
    target: Any
    teacher: Any


def subject_of(asked: Namespace) -> Subject:
    """The subject that the options of `qsft explore` name; `overrides` replace keys of the recipe."""
    if asked.n < 1:
        raise ValueError(f"--n {asked.n}: at least one document is needed.")
    words = target_words(asked.target)
    if asked.recipe is not None:
        given = {"model_name_or_path": asked.model, "teacher_cache": asked.teacher_cache}
        words += [*asked.overrides, *(f"--{name}={value}" for name, value in given.items() if value is not None)]
        # Prepared by the trainer as for training, of a random draw of its rows.
        job = configure(read_recipe(asked.recipe, words)).sampled(asked.n, asked.seed)
        trainer = job.trainer()
        known = (d for d in Documents(trainer.train_dataset) if trainer.cache is None or d in trainer.cache)
        return Subject(trainer.model, job.tokenizer, known, trainer.target, trainer.cache or trainer.live)
    if asked.model is None or asked.teacher_cache is None:
        raise ValueError("name a RECIPE, or give --model and --teacher_cache (and --dataset_path for your documents).")
    if asked.overrides:
        raise ValueError(f"{asked.overrides[0]} is a key of a recipe, but no RECIPE is named.")
    documents = load_documents(asked.dataset_path).shuffle(seed=asked.seed) if asked.dataset_path else None
    return _subject_of_cache(asked.model, asked.teacher_cache, words, documents)


def _subject_of_cache(model: str, path: str, words: Sequence[str], documents: Any) -> Subject:
    """A model and a cache, with the given documents that it holds, or the ones it keeps whole."""
    cache, values = TeacherCache(path), read_recipe(None, words).values
    target = make_target(values.get("target", DEFAULT_TARGET), **values.get("target_kwargs", {}))
    tokenizer = AutoTokenizer.from_pretrained(model)
    student: Any = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    cache.check_student(tokenizer, student.config.get_text_config().vocab_size)
    kept: Iterable[Mapping[str, Any]] = (row for row in documents or () if row in cache)
    if documents is None:
        kept = [{"input_ids": input_ids, "labels": labels} for input_ids, labels in cache.samples()]
    return Subject(student.to(default_device()), tokenizer, kept, target, cache)


def target_words(words: Sequence[str]) -> list[str]:
    """`--target target eta=0.2` as a recipe's overrides."""
    if not words:
        return []
    name, *pairs = words
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"--target {name}: {pair!r} is no hyper-parameter; write KEY=VALUE, and the RECIPE first.")
    return ["--target", name, *(f"--target_kwargs.{pair}" for pair in pairs)]
