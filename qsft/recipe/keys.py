"""The keys of a recipe: the fields of three dataclasses, read by TRL's own parser of them.

A value in a file and a word of the command line go the same way: `parse_value("learning_rate", ["5e-5"])`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from qsft.data.load import DataSettings

if TYPE_CHECKING:
    from trl import TrlParser

# TRL's spelling of keys that are called otherwise here.
ALIASES = {"dataset_name": "dataset", "dataset_train_split": "dataset_split", "dataset_test_split": "eval_split"}

# Where rows come from and which of them: said about one data set, so another one starts from the defaults.
ORIGIN = ("data_dir", "response", "sample_rows", "dataset_config", "dataset_revision", "dataset_split")

NULL = ("null", "None")  # `none` stays a word: report_to has one of that name


@dataclass
class RecipeSettings(DataSettings):
    """What a recipe says beyond the model's and the trainer's configuration."""

    curate: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": 'Train on what a data-level method makes of the data: {"method": "rft", "n": 8}. Its settings are '
            "those of `qsft curate METHOD --help`; `out` is where it is kept (default: output_dir/curated)."
        },
    )
    global_batch_size: int | None = field(
        default=None,
        metadata={
            "help": "Sequences per optimiser step over all processes. per_device_train_batch_size becomes at most the "
            "share of one process, and gradient_accumulation_steps the rest. Rows are cut to a multiple of it."
        },
    )
    eval_split: str | None = field(
        default=None, metadata={"help": "Split to report the loss on while training (with eval_strategy)."}
    )
    eval_tasks: str | None = field(
        default=None, metadata={"help": "What `qsft eval RECIPE` measures: math, medical, or names of tasks."}
    )
    eval_protocol: str | None = field(
        default=None, metadata={"help": "How `qsft eval RECIPE` samples and grades, such as paper-math or avg16."}
    )
    target_protocols: dict[str, str] | None = field(
        default=None,
        metadata={"help": 'Targets that are evaluated otherwise than by eval_protocol: {"target": "avg16"}.'},
    )
    dry_run: bool = field(
        default=False, metadata={"help": "Print configuration, data, steps and the state of the cache, and stop."}
    )


def owners() -> tuple[type, ...]:
    """The dataclasses whose fields are the keys, in the order recipe, model, training."""
    from trl import ModelConfig

    from qsft.train.config import TargetSFTConfig

    return RecipeSettings, ModelConfig, TargetSFTConfig


@cache
def declared_kinds() -> dict[str, set[Any]]:
    """The types that each key's field declares, without their parameters: {"report_to": {NoneType, str, list}, …}."""
    hints = {name: hint for owner in owners() for name, hint in get_type_hints(owner).items()}
    unions = {
        name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,) for name, hint in hints.items()
    }
    return {name: {get_origin(member) or member for member in members} for name, members in unions.items()}


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
def keys() -> dict[str, argparse.Action]:
    """Every key a recipe may hold, by name; `no_bf16` and its kind included."""
    actions = key_parser()._actions
    return {action.option_strings[0].removeprefix("--"): action for action in actions}


def parse_value(name: str, words: Sequence[str]) -> Any:
    """The words after `--name` as a value of the type that its field declares; a ValueError says what is wrong."""
    alone = [f"--{name}={words[0]}"] if len(words) == 1 else [f"--{name}", *words]
    try:
        parsed, rest = key_parser().parse_known_args(alone)
    except argparse.ArgumentError as error:
        raise ValueError(f"{error.message}. `qsft train --keys` explains every key.") from None
    if rest:
        raise ValueError(f"takes one value, but got {' '.join(words)!r}.")
    value = getattr(parsed, keys()[name].dest)
    return _one_word(value[0], declared_kinds()[name]) if isinstance(value, list) and len(value) == 1 else value


def _one_word(word: str | None, kinds: set[Any]) -> Any:
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
    """Every key with its default and its help."""
    from trl import TrlParser

    actions = TrlParser(owners(), add_help=False)._actions
    told = [(a.option_strings[0], a.default, " ".join((a.help or "").split())) for a in actions if a.nargs != 0]
    return "\n".join(f"{name}  (default: {default})\n    {text}" for name, default, text in told)


def _widen(action: argparse.Action, kinds: set[Any]) -> None:
    """Let a key take what TRL's parser leaves out: JSON, lists beside text, null, a flag without a word."""
    read: Any = action.type
    if kinds <= {bool, NoneType}:
        action.nargs, action.const = "?", True
    elif dict in kinds:
        read = _json_or_text if str in kinds else _json_object
    elif list in kinds:
        action.nargs = "+"
    elif str in kinds and kinds & {int, bool}:
        read = read_word
    if action.choices is not None and NoneType in kinds:
        action.choices = [*action.choices, None]
    action.type = _or_null(read, NoneType in kinds)


def _or_null(read: Callable[[str], Any], allowed: bool) -> Callable[[str], Any]:
    def convert(word: str) -> Any:
        if word not in NULL:
            return read(word)
        if not allowed:
            raise argparse.ArgumentTypeError("null is not possible here: leave the key out to keep its default")
        return None

    convert.__name__ = getattr(read, "__name__", "value")  # argparse says "invalid int value"
    return convert


def _json_or_text(word: str) -> Any:
    value = read_word(word)
    return value if isinstance(value, dict) else word


def _json_object(word: str) -> Any:
    if isinstance(value := read_word(word), dict):
        return value
    raise argparse.ArgumentTypeError(f'{word!r} is not a JSON object such as {{"n": 8}}')
