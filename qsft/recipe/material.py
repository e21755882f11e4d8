"""A recipe's data and model as other rooms take them: a data-level method its material, a picture its subject.

qsft curate rft RECIPE --n 8                 calls curate_recipe
curate: {"method": "rft", "n": 8}            in a recipe calls it before training, and trains on what it made
qsft explore tokens RECIPE                   calls subject_of
"""

from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers import AutoModelForCausalLM, AutoTokenizer

from qsft.curate.catalogue import Options, find_method, settings_of
from qsft.curate.curation import Material, curate
from qsft.data.read import load_documents
from qsft.data.sources import find_source
from qsft.processes import is_main, process_group
from qsft.recipe.job import WORLDS, Job, configure
from qsft.recipe.keys import ORIGIN, RecipeSettings
from qsft.recipe.recipe_file import DEFAULT_TARGET, read_recipe
from qsft.targets.zoo import make_target
from qsft.teacher.documents import Documents
from qsft.teacher.lookup import TeacherCache
from qsft.teacher.source import default_device

if TYPE_CHECKING:
    from datasets import Dataset


def curate_recipe(method: str, name: str | None, given: Namespace, words: Sequence[str]) -> str:
    """Do `qsft curate METHOD [NAME]` with these options, `words` being keys of a recipe; what to say at the end."""
    recipe = read_recipe(name, [*words, *(["--model_name_or_path", given.model] if given.model else [])])
    recipe = replace(recipe, values={key: value for key, value in recipe.values.items() if key != "curate"})
    known = settings_of(find_method(method))
    settings = {key: value for key, value in vars(given).items() if key in known and value is not None}
    with process_group():
        manifest = curate_job(configure(recipe), method, settings, given.out, Options.of(vars(given)))
    return conclusion(manifest, given.out, name) if is_main() else ""


def conclusion(manifest: Mapping[str, Any], out: Path, recipe: str | None) -> str:
    """What was kept, where it is and what to do next."""
    lines = [f"{manifest['counts']['rows']:,} rows from {manifest['counts']['problems']:,} problems in {out}"]
    counts = {**manifest["rows by origin"], **manifest["counts"]}
    lines += [f"  {count:>9,}  {name}" for name, count in counts.items() if count]
    for name, value in manifest["rates"].items():
        lines.append(f"  {value:>9,.1f}  {name}" if value > 1 else f"  {value:>9.1%}  {name}")
    target = "cft" if manifest["method"] == "critical" else "sft"
    start = recipe or f"--model_name_or_path {manifest['name']}"
    return "\n".join([*lines, "Train on it with", f"  qsft train {start} --target {target} --dataset_name {out}"])


def curate_job(job: Job, method: str, settings: Mapping[str, Any], out: Path, options: Options) -> dict[str, Any]:
    """The manifest of the data set that a method makes of a job's training rows, in `out`."""
    if world := WORLDS.get(job.settings.dataset or ""):
        options = replace(options, gold=options.gold or world["gold"], verifier=options.verifier or world["verifier"])
    return curate(method, settings, material(job, options.limit), out, options)


def material(job: Job, limit: int | None) -> Material:
    """The rows that training would have seen, as they are stored, and what else a method asks of a recipe."""
    settings = job.settings
    # Training would refuse `prompt` for a data set that TRL renders; here it may be how a text column is asked.
    loaded = settings if find_source(settings) else replace(settings, prompt=RecipeSettings.prompt)
    chosen = job.load(loaded, to_train=False).manifest["row_ids"][:limit]

    def other(dataset: str) -> "tuple[Dataset, RecipeSettings]":
        there = replace(settings, dataset=dataset, data_dir=None)
        return job.stored_rows(there), there

    return Material(
        job.stored_rows(settings).select(chosen),
        settings,
        job.student,
        job.tokenizer,
        other,
        train=lambda rows, start, out: train(job, rows, start, out),
        training=dict(job.recipe.values),
    )


def train(job: Job, rows: Path, start: str, out: Path) -> None:
    """Train `start` on other rows by the recipe's own settings."""
    values = {key: value for key, value in job.recipe.values.items() if key not in {"curate", *ORIGIN}}
    values = {"target": "sft", **values, "dataset": str(rows), "model_name_or_path": start}
    trainer = configure(replace(job.recipe, values=values, output_dir=str(out))).trainer()
    trainer.train()
    trainer.save_model(str(out))
    trainer.accelerator.wait_for_everyone()


def curated_settings(job: Job) -> RecipeSettings:
    """The data settings of a job whose recipe has the key `curate`; its rows are curated now, unless they were."""
    wanted = dict(job.settings.curate or {})
    if "method" not in wanted:
        raise ValueError(f'curate={wanted} names no method. Write for example {{"method": "rft", "n": 8}}.')
    out = Path(wanted.pop("out", None) or Path(str(job.args.output_dir), "curated"))
    options = Options.of({item.name: wanted.pop(item.name) for item in fields(Options) if item.name in wanted})
    curate_job(job, wanted.pop("method"), wanted, out, options)
    origin: dict[str, Any] = {"dataset": str(out), **dict.fromkeys(ORIGIN, None), "dataset_split": "train"}
    return replace(job.settings, **origin, curate=None)


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
