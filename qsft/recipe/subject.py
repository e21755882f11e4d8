"""What a picture of `qsft explore` is made of: a recipe's model, documents and teacher, or a model and a cache."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from qsft.recipe.job import configure
from qsft.recipe.recipe_file import DEFAULT_TARGET, read_recipe

if TYPE_CHECKING:
    from datasets import Dataset


class Subject(NamedTuple):
    """A student, what it is shown, and what it is to learn from."""

    model: Any
    tokenizer: Any
    documents: "Iterable[Mapping[str, Any]]"
    target: Any
    teacher: Any


def subject_of_recipe(recipe: str, words: Sequence[str], n: int, seed: int) -> Subject:
    """The recipe's documents, prepared by the trainer as for training, of a random draw of its rows."""
    from qsft.teacher.documents import Documents

    job = configure(read_recipe(recipe, words)).sampled(n, seed)
    trainer = job.trainer()
    known = (d for d in Documents(trainer.train_dataset) if trainer.cache is None or d in trainer.cache)
    return Subject(trainer.model, job.tokenizer, known, trainer.target, trainer.cache or trainer.live)


def subject_of_cache(model: str, path: str, words: Sequence[str], documents: "Dataset | None") -> Subject:
    """A model and a cache, with the given documents that it holds, or the ones it keeps whole."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from qsft.targets.zoo import make_target
    from qsft.teacher.cache import TeacherCache
    from qsft.teacher.source import default_device

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
    split = [pair.partition("=") for pair in pairs]
    for key, equals, _ in split:
        if not equals:
            raise ValueError(f"--target {name}: {key!r} is no hyper-parameter; write KEY=VALUE, and the RECIPE first.")
    return ["--target", name, *(word for key, _, value in split for word in (f"--target_kwargs.{key}", value))]
