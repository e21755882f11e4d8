"""What `qsft explore tokens` and `qsft explore alignment` look at: student, tokenizer, documents, target, teacher."""

from argparse import Namespace
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from qsft.data.load import load_documents
from qsft.inference.loading import default_device
from qsft.recipe.job import configure
from qsft.recipe.recipe_file import DEFAULT_TARGET, read_recipe
from qsft.targets.registry import make_target
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents


def read_explore_inputs(asked: Namespace) -> tuple[Any, ...]:
    """What the options of `qsft explore` name: student, tokenizer, documents, target, and cache or live teacher."""
    if asked.n < 1:
        raise ValueError(f"--n {asked.n}: at least one document is needed.")
    name, pairs = asked.target[:1], asked.target[1:]
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise ValueError(f"--target {name[0]}: {wrong[0]!r} is not KEY=VALUE; write the RECIPE before --target.")
    words = [*(f"--target={one}" for one in name), *(f"--target_kwargs.{pair}" for pair in pairs)]
    if asked.recipe is not None:
        given = {"model_name_or_path": asked.model, "teacher_cache": asked.teacher_cache}
        words += [*asked.overrides, *(f"--{name}={value}" for name, value in given.items() if value is not None)]
        # Prepared by the trainer as for training, of a random draw of its rows.
        job = configure(read_recipe(asked.recipe, words))
        trainer = job.sampled(asked.n, asked.seed)
        known = (d for d in Documents(trainer.train_dataset) if trainer.cache is None or d in trainer.cache)
        return trainer.model, job.tokenizer, known, trainer.target, trainer.cache or trainer.live_teacher
    if asked.model is None or asked.teacher_cache is None:
        raise ValueError("name a RECIPE, or give --model and --teacher_cache (and --dataset_path for your documents).")
    if asked.overrides:
        raise ValueError(f"{asked.overrides[0]} is a key of a recipe, but no RECIPE is named.")
    cache, values = TeacherCache(asked.teacher_cache), read_recipe(None, words).values
    target = make_target(values.get("target", DEFAULT_TARGET), **values.get("target_kwargs", {}))
    tokenizer = AutoTokenizer.from_pretrained(asked.model)
    student: Any = AutoModelForCausalLM.from_pretrained(asked.model, dtype="auto")
    cache.check_student(tokenizer, student.config.get_text_config().vocab_size)
    documents: Any = [{"input_ids": ids, "labels": labels} for ids, labels in cache.samples()]  # those it keeps whole
    if asked.dataset_path:
        rows = load_documents(asked.dataset_path).shuffle(seed=asked.seed)
        documents = (row for row in rows if row in cache)
    return student.to(default_device()), tokenizer, documents, target, cache
