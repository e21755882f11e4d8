"""The keys of a recipe: the fields of three dataclasses, read by TRL's own parser, in files as on the command line."""

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from qsft.data.sources import DataSettings, key

if TYPE_CHECKING:
    from trl import TrlParser

# Where rows come from and which of them: said about one data set, so another one starts from the defaults.
ORIGIN = (
    "data_dir", "response", "question_column", "response_column", "sample_rows", "dataset_config", "dataset_revision",
    "dataset_train_split",
)  # fmt: skip
OPTION = re.compile(r"^--[\w-]+")


@dataclass
class RecipeSettings(DataSettings):
    """What a recipe says beyond the model's and the trainer's configuration."""

    curate: dict[str, Any] | None = key(  # noqa: RUF009
        None,
        'Train on what a data-level method makes of the data: {"method": "rft", "num_samples": 8}, with the settings '
        "of `qsft curate METHOD --help`; `out` is where it is kept (default: output_dir/curated).",
    )
    global_batch_size: int | None = key(
        None,
        "Sequences per optimiser step over all processes. per_device_train_batch_size becomes at most the share of one "
        "process, gradient_accumulation_steps the rest; rows are cut to a multiple of it.",
    )
    dataset_test_split: str | None = key(None, "Split to report the loss on (with eval_strategy).")
    eval_tasks: str | None = key(None, "What `qsft eval RECIPE` measures: math, medical, or names of tasks.")
    eval_protocol: str | None = key(None, "How `qsft eval RECIPE` samples and grades, such as paper-math or avg16.")
    target_protocols: dict[str, str] | None = key(  # noqa: RUF009
        None, 'Targets that are evaluated otherwise than by eval_protocol: {"target": "avg16"}.'
    )
    overwrite: bool = key(False, "Start anew where a run is: it is moved to output_dir/earlier.")
    dry_run: bool = key(False, "Print configuration, data, steps and the state of the cache, and stop.")


def owners() -> tuple[Any, ...]:
    """The dataclasses whose fields are the keys, in the order recipe, model, training."""
    from trl import ModelConfig

    from qsft.train.config import TargetSFTConfig

    return RecipeSettings, ModelConfig, TargetSFTConfig


@cache
def key_parser() -> "TrlParser":
    """TRL's parser of all keys, which gives only what was given: defaults are the dataclasses' business."""
    from trl import TrlParser

    parser = TrlParser(owners(), allow_abbrev=False, add_help=False, exit_on_error=False)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        if action.nargs != 0:  # --no_bf16 and its kind take no word
            _widen(action, declared_kinds()[action.dest])
    return parser


@cache
def declared_kinds() -> dict[str, set[Any]]:
    """The types that each key's field declares, without their parameters: {"report_to": {NoneType, str, list}, …}."""
    hints = {name: hint for owner in owners() for name, hint in get_type_hints(owner).items()}
    members = {name: get_args(h) if get_origin(h) in (Union, UnionType) else [h] for name, h in hints.items()}
    return {name: {get_origin(member) or member for member in union} for name, union in members.items()}


def keys() -> dict[str, argparse.Action]:
    """Every key a recipe may hold, by every name it has but those with hyphens."""
    options = key_parser()._option_string_actions
    return {option[2:]: action for option, action in options.items() if "-" not in option[2:]}


def parse_words(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values that `--key value` words give to keys, and the words that no key takes."""
    underscored = [OPTION.sub(lambda option: "--" + option[0][2:].replace("-", "_"), word) for word in words]
    try:
        parsed, rest = key_parser().parse_known_args(underscored)
    except argparse.ArgumentError as error:
        name = str(error.argument_name).partition("/")[0]
        raise ValueError(f"{name}: {error.message}. `qsft train --keys` explains every key.") from None
    lone = {key: value[0] for key, value in vars(parsed).items() if isinstance(value, list) and len(value) == 1}
    return vars(parsed) | {key: _lone(word, declared_kinds()[key]) for key, word in lone.items()}, rest


def _lone(word: str | None, kinds: set[Any]) -> Any:
    """A list given as one word: JSON, or null, or its only member, which alone will do where text is allowed."""
    if word is None or (word.startswith("[") and isinstance(read_word(word), list)):
        return None if word is None else read_word(word)
    return word if str in kinds else [word]


def read_word(word: str) -> Any:
    """A word whose type nobody declares (a hyper-parameter): a number, JSON, true or false, null, or text."""
    if word.lower() in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(word.lower())
    for read in (int, float, json.loads):
        try:
            return read(word)
        except ValueError:
            continue
    return word


def list_keys() -> str:
    from trl import TrlParser

    actions = TrlParser(owners(), add_help=False)._actions
    told = [(a.option_strings[0], a.default, " ".join((a.help or "").split())) for a in actions if a.nargs != 0]
    return "\n".join(f"{name}  (default: {default})\n    {text}" for name, default, text in told)


def _widen(action: argparse.Action, kinds: set[Any]) -> None:
    """Let a key take what TRL's parser leaves out: JSON, lists beside text, null, a flag without a word."""
    read: Any = action.type
    if kinds <= {bool, NoneType}:
        action.nargs, action.const = "?", True
    elif list in kinds:
        action.nargs = "+"
    elif dict in kinds or (str in kinds and kinds & {int, bool}):
        read = read_word
    if action.choices is not None and NoneType in kinds:
        action.choices = [*action.choices, None]

    def convert(word: str) -> Any:
        value = read(word) if word not in ("null", "None") else None  # `none` stays a word: report_to has one
        if value is None and NoneType not in kinds:
            raise argparse.ArgumentTypeError("null is not possible here: leave the key out to keep its default")
        if dict in kinds and not isinstance(value, dict | None):
            if str not in kinds:
                raise argparse.ArgumentTypeError(f'{word!r} is not a JSON object such as {{"num_samples": 8}}')
            value = word
        return value

    convert.__name__ = getattr(read, "__name__", "value")  # argparse says "invalid int value"
    action.type = convert
