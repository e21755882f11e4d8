"""What a job reads: the tokenizer of its student, its rows as they are stored, its training examples."""

from dataclasses import replace
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from qsft.data.load import TrainingData, load_training_data
from qsft.data.rows import read_rows
from qsft.data.sources import DataSettings
from qsft.inference.loading import load_tokenizer
from qsft.recipe.job import Job
from qsft.recipe.keys import DATASET_KEYS
from qsft.user_functions import import_function, is_function_name


def load_student_tokenizer(job: Job) -> PreTrainedTokenizerBase:
    """Return the student's tokenizer, with the chat template of `chat_template_path` if that is set."""
    tokenizer = load_tokenizer(
        job.student, revision=job.model.model_revision, trust_remote_code=job.args.trust_remote_code
    )
    if job.args.chat_template_path is not None:
        _use_chat_template(tokenizer, job.args.chat_template_path)
    return tokenizer


def _use_chat_template(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Set the chat template as TRL's trainer will: from a file, or with the end token from a model.

    Raises:
        ValueError: the student has no tokens for the template.
    """
    if path.endswith((".jinja", ".j2")) and Path(path).is_file():
        tokenizer.chat_template = Path(path).read_text(encoding="utf-8")
        return
    source = load_tokenizer(path)
    missing = [str(token) for token in source.added_tokens_decoder.values() if str(token) not in tokenizer.get_vocab()]
    if missing:
        raise ValueError(
            f"the chat template of {path} comes with {missing[0]!r}, which the student's tokenizer does not have. Add "
            "the tokens to the student and save it (trl.clone_chat_template), or give a template in a .jinja file."
        )
    tokenizer.chat_template = source.get_chat_template()
    tokenizer.eos_token = source.eos_token


def stored_rows(job: Job, settings: DataSettings) -> Dataset:
    """Return the rows of a data set as they are stored, or as the function it names makes them from the seed."""
    name = settings.dataset_name
    if settings.data_dir is not None or not is_function_name(name):
        return read_rows(settings)
    assert name is not None
    if settings.dataset_train_split != "train":
        raise ValueError(
            f"dataset_name={name} is a function, which gives one split, train; there is no split "
            f"{settings.dataset_train_split!r}. Leave dataset_train_split and dataset_test_split out."
        )
    rows = import_function(name, "dataset_name")(job.args.seed)
    if not isinstance(rows, Dataset):
        raise ValueError(f"dataset_name={name} returned {type(rows).__name__}. It must return a datasets.Dataset.")
    return rows


def load_data(
    job: Job,
    tokenizer: PreTrainedTokenizerBase | None,
    settings: DataSettings,
    *,
    multiple_of: int = 1,
    rows: Dataset | None = None,
    to_train: bool = True,
) -> TrainingData:
    """Return the training examples of some settings, prepared as the recipe's are.

    The first process of each machine prepares them; the others read its result.

    Args:
        multiple_of: cut the examples to a multiple of this number.
        rows: the stored rows, if the caller has them.
        to_train: check that TRL can read the rows.
    """
    with job.args.main_process_first(desc="loading data"):
        data = load_training_data(
            settings,
            tokenizer,
            max_length=None if job.args.packing else job.args.max_length,
            multiple_of=multiple_of,
            num_proc=job.args.dataset_num_proc,
            rows=stored_rows(job, settings) if rows is None else rows,
            text_column=job.args.dataset_text_field if to_train else None,
        )
    replaced = {key: value for key, value in job.recipe.set_aside.items() if key in DATASET_KEYS}
    if replaced:
        data = replace(data, manifest={**data.manifest, "set aside": replaced})
    return data
