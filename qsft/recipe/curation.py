"""A recipe's data and model as other rooms take them: a data-level method its material, a picture its subject."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset

from qsft.curate.catalogue import Options, find_method, settings_of
from qsft.curate.curation import Material, curate
from qsft.data.sources import find_source
from qsft.processes import is_main, process_group
from qsft.recipe.job import WORLDS, Job, configure
from qsft.recipe.keys import ORIGIN, RecipeSettings
from qsft.recipe.recipe_file import read_recipe


def curate_recipe(method: str, name: str | None, given: Namespace, words: Sequence[str]) -> None:
    """Do `qsft curate METHOD [NAME]` with these options, `words` being keys of a recipe, and say what came of it."""
    recipe = read_recipe(name, [*words, *(["--model_name_or_path", given.model] if given.model else [])])
    recipe = replace(recipe, values={key: value for key, value in recipe.values.items() if key != "curate"})
    known = settings_of(find_method(method))
    settings = {key: value for key, value in vars(given).items() if key in known and value is not None}
    with process_group():
        manifest = curate_job(configure(recipe), method, settings, given.out, Options.of(vars(given)))
    if not is_main():
        return
    lines = [f"{manifest['counts']['rows']:,} rows from {manifest['counts']['problems']:,} problems in {given.out}"]
    counts = {**manifest["rows by origin"], **manifest["counts"]}
    lines += [f"  {count:>9,}  {what}" for what, count in counts.items() if count]
    for what, value in manifest["rates"].items():
        lines.append(f"  {value:>9,.1f}  {what}" if value > 1 else f"  {value:>9.1%}  {what}")
    target = "cft" if manifest["method"] == "critical" else "sft"
    start = name or f"--model_name_or_path {manifest['name']}"
    lines += ["Train on it with", f"  qsft train {start} --target {target} --dataset_name {given.out}"]
    print("\n".join(lines))


def curate_job(job: Job, method: str, wanted: Mapping[str, Any], out: Path, options: Options) -> dict[str, Any]:
    """Give a method the rows that training would have seen, as they are stored; the manifest of what it made."""
    settings = job.settings
    if world := WORLDS.get(settings.dataset_name or ""):
        options = replace(options, gold=options.gold or world["gold"], verifier=options.verifier or world["verifier"])
    # Training would refuse `prompt` for a data set that TRL renders; here it may be how a text column is asked.
    loaded = settings if find_source(settings) else replace(settings, prompt=RecipeSettings.prompt)
    chosen = job.load(loaded, to_train=False).manifest["row_ids"][: options.limit]

    def other(dataset: str) -> tuple[Dataset, RecipeSettings]:
        there = replace(settings, dataset_name=dataset, data_dir=None)
        return job.stored_rows(there), there

    rows, by = job.stored_rows(settings).select(chosen), partial(train, job)
    material = Material(rows, settings, job.student, job.tokenizer, other, by, training=dict(job.recipe.values))
    return curate(method, wanted, material, out, options)


def train(job: Job, rows: Path, start: str, out: Path) -> None:
    values = {key: value for key, value in job.recipe.values.items() if key not in {"curate", *ORIGIN}}
    values = {"target": "sft", **values, "dataset_name": str(rows), "model_name_or_path": start}
    trainer = configure(replace(job.recipe, values=values, output_dir=str(out))).trainer()
    trainer.train()
    trainer.save_model(str(out))
    trainer.accelerator.wait_for_everyone()


def curated_settings(job: Job) -> RecipeSettings:
    """The data settings of a job whose recipe has the key `curate`; its rows are curated now, unless they were."""
    wanted = dict(job.settings.curate or {})
    if "method" not in wanted:
        raise ValueError(f'curate={wanted} names no method. Write for example {{"method": "rft", "num_samples": 8}}.')
    out = Path(wanted.pop("out", None) or Path(str(job.args.output_dir), "curated"))
    options = Options.of({item.name: wanted.pop(item.name) for item in fields(Options) if item.name in wanted})
    curate_job(job, wanted.pop("method"), wanted, out, options)
    origin: dict[str, Any] = {"dataset_name": str(out), **dict.fromkeys(ORIGIN, None), "dataset_train_split": "train"}
    return replace(job.settings, **origin, curate=None)
