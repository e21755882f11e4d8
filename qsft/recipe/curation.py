"""The curation of a recipe's data set: for `qsft curate` and for the key `curate`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from qsft.curate.context import CurationInputs
from qsft.curate.curation import curate
from qsft.curate.registry import Options
from qsft.data.sources import find_source
from qsft.recipe.job import Job
from qsft.recipe.job_data import load_data, stored_rows
from qsft.recipe.keys import DATASET_KEYS, RecipeSettings
from qsft.run_directory import curated_directory


@dataclass(frozen=True)
class Curation:
    """A data-level method and where its data set goes.

    Args:
        method: name of the method.
        settings: the method's own settings that were given.
        options: how the method is run.
        output_dir: where the data set goes.
    """

    method: str
    settings: Mapping[str, Any]
    options: Options
    output_dir: Path


def read_curation(value: Mapping[str, Any], run: str) -> Curation:
    """Return the curation that the key `curate` describes.

    Args:
        value: the key's value, such as {"method": "rft", "num_samples": 8}.
        run: the output directory of the run, which holds the data set by default.
    """
    remaining = dict(value)
    if "method" not in remaining:
        raise ValueError(f'curate={dict(value)} has no method. Write for example {{"method": "rft"}}.')
    method = remaining.pop("method")
    output_dir = Path(remaining.pop("output_dir", None) or curated_directory(run))
    names = {field.name for field in fields(Options)}
    options = {name: remaining.pop(name) for name in list(remaining) if name in names}
    return Curation(method, remaining, Options.of(options), output_dir)


def curated_settings(settings: RecipeSettings, directory: Path) -> RecipeSettings:
    """Return the settings that read a curated data set instead of the recipe's own."""
    replaced: dict[str, Any] = dict.fromkeys(DATASET_KEYS)
    replaced["dataset_name"] = str(directory)
    replaced["dataset_train_split"] = "train"
    return replace(settings, curate=None, **replaced)


def curate_dataset(
    job: Job,
    tokenizer: PreTrainedTokenizerBase,
    curation: Curation,
    train_round: Callable[[Path, str, Path], None],
) -> dict[str, Any]:
    """Run a method over the rows that training would have read, and return the manifest of what it made.

    Args:
        job: the recipe's job.
        tokenizer: the student's.
        curation: what to do.
        train_round: trains (directory of rows, initial model, output directory), for methods of several rounds.
    """
    settings = job.settings
    options = curation.options
    if settings.gold is not None and options.gold is None:
        options = replace(options, gold=settings.gold)
    if settings.verifier is not None and options.verifier is None:
        options = replace(options, verifier=settings.verifier)
    # With a data set that TRL renders, training does not accept `prompt`; here it may be the prompt of a text column.
    loaded_settings = settings
    if find_source(settings) is None:
        loaded_settings = replace(settings, prompt=RecipeSettings.prompt)
    row_ids = load_data(job, tokenizer, loaded_settings, to_train=False).manifest["row_ids"]

    def other_dataset(name: str) -> tuple[Dataset, RecipeSettings]:
        other = replace(settings, dataset_name=name, data_dir=None)
        return stored_rows(job, other), other

    inputs = CurationInputs(
        stored_rows(job, settings).select(row_ids[: options.limit]),
        settings,
        job.student,
        tokenizer,
        other_dataset,
        train_round,
        training=dict(job.recipe.values),
    )
    return curate(curation.method, curation.settings, inputs, curation.output_dir, options)
