"""The keys of a recipe: the fields of three dataclasses, read by TRL's own parser, in files as on the command line."""

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from qsft.data.sources import DataSettings, key
from qsft.validation import did_you_mean

if TYPE_CHECKING:
    from trl import TrlParser

# Keys that describe one data set: where another data set is named, they return to their defaults.
DATASET_KEYS = (
    "data_dir",
    "response",
    "question_column",
    "response_column",
    "sample_rows",
    "dataset_config",
    "dataset_revision",
    "dataset_train_split",
)
NON_NEGATIVE = ("learning_rate", "weight_decay", "max_grad_norm", "num_train_epochs", "warmup_steps")
OPTION = re.compile(r"^--[\w-]+")


@dataclass
class RecipeSettings(DataSettings):
    """The keys of a recipe that are neither the model's nor the trainer's."""

    teacher: str | None = key(
        None,
        "The same as `teacher=` in Python: a model id or path, the directory of a cache, or `base` for the student "
        "before training.",
    )
    curate: dict[str, Any] | None = key(  # noqa: RUF009
        None,
        'Change the data with a data-level method and train on the result: {"method": "rft"}, with the settings of '
        "`qsft curate METHOD --help`. The result is stored in its `output_dir` (default: _curated in the run's "
        "directory).",
    )
    gold: str | None = key(None, "How `qsft curate` finds the gold answer: a column, `boxed`, or module:function(row).")
    verifier: str | None = key(None, "How `qsft curate` verifies a response: module:function(response, row).")
    global_batch_size: int | None = key(
        None,
        "Sequences per optimizer step over all processes. per_device_train_batch_size is reduced to the share of one "
        "process if it is larger, and gradient_accumulation_steps is computed. Without packing, the number of "
        "examples is rounded down to a multiple of the global batch size.",
    )
    launch: str | None = key(
        None, "The launch configuration that the recipe is made for, such as fsdp2. A start on one GPU prints it."
    )
    dataset_test_split: str | None = key(None, "Split on which the loss is reported (with eval_strategy).")
    eval_tasks: str | None = key(None, "Tasks of `qsft eval RECIPE`: math, medical, or names of tasks.")
    eval_protocol: str | None = key(
        None, "Protocol of `qsft eval RECIPE`, which defines how it samples and grades, such as paper-math."
    )
    target_protocols: dict[str, str] | None = key(  # noqa: RUF009
        None, 'Protocols of targets that are not evaluated with eval_protocol: {"target_sft": "paper-math"}.'
    )
    overwrite: bool = key(False, "Start again where a run exists. The earlier run is moved to OUTPUT_DIR.previous.")
    dry_run: bool = key(False, "Run every check that needs no weights, print what the recipe would do, and stop.")


def owners() -> tuple[Any, ...]:
    """Return the dataclasses whose fields are the keys, in the order recipe, model, training."""
    from trl import ModelConfig

    from qsft.train.config import TargetSFTConfig

    return RecipeSettings, ModelConfig, TargetSFTConfig


@cache
def key_parser() -> "TrlParser":
    """Return TRL's parser of all keys without defaults: those are the dataclasses' own."""
    from trl import TrlParser

    parser = TrlParser(owners(), allow_abbrev=False, add_help=False, exit_on_error=False)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        if action.nargs != 0:  # --no_bf16 and the like take no value
            _widen(action, declared_types()[action.dest])
    return parser


@cache
def declared_types() -> dict[str, set[Any]]:
    """Return the types that each key's field declares: {"report_to": {NoneType, str, list}, …}."""
    found: dict[str, set[Any]] = {}
    for owner in owners():
        for name, hint in get_type_hints(owner).items():
            members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
            found[name] = {get_origin(member) or member for member in members}
    return found


def keys() -> dict[str, argparse.Action]:
    """Return every key a recipe may have, by each of its names without hyphens."""
    options = key_parser()._option_string_actions
    return {option[2:]: action for option, action in options.items() if "-" not in option[2:]}


def parse_words(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that `--key value` words give to keys, and the words that are no key's.

    Raises:
        ValueError: A value does not fit its key.
    """
    underscored = [OPTION.sub(lambda option: "--" + option[0][2:].replace("-", "_"), word) for word in words]
    try:
        parsed, unknown = key_parser().parse_known_args(underscored)
    except argparse.ArgumentError as error:
        name = str(error.argument_name).partition("/")[0]
        raise ValueError(f"{name}: {error.message}. `qsft train --keys` explains every key.") from None
    values = vars(parsed)
    for name, value in values.items():
        if isinstance(value, list) and len(value) == 1:
            values[name] = _single_word_of_list(value[0], declared_types()[name])
    return values, unknown


def _single_word_of_list(word: str | None, types: set[Any]) -> Any:
    """The value of a list key given as one word: JSON, null, a text where the key takes one, or a list of one."""
    if word is None:
        return None
    if word.startswith("["):
        value = read_word(word)
        if isinstance(value, list):
            return value
    return word if str in types else [word]


def read_word(word: str) -> Any:
    """Return the value of a word without a declared type: a number, JSON, true or false, null, or the text itself.

    >>> [read_word(word) for word in ("3", "1e-3", "true", "null", "[1, 2]", "topk")]
    [3, 0.001, True, None, [1, 2], 'topk']
    """
    constants = {"true": True, "false": False, "none": None, "null": None}
    if word.lower() in constants:
        return constants[word.lower()]
    readers: tuple[Callable[[str], Any], ...] = (int, float, json.loads)
    for read in readers:
        try:
            return read(word)
        except ValueError:
            continue
    return word


def list_keys(pattern: str = "") -> str:
    """Return the keys whose names or help contain a text, with defaults and help.

    Raises:
        ValueError: there is none.
    """
    from trl import TrlParser

    lines = []
    for action in TrlParser(owners(), add_help=False)._actions:
        if action.nargs == 0:
            continue
        text = " ".join((action.help or "").split())
        if pattern.lower() in f"{action.option_strings[0]} {text}".lower():
            lines.append(f"{action.option_strings[0]}  (default: {action.default})\n    {text}")
    if not lines:
        raise ValueError(
            f"no key contains {pattern!r} in its name or help.{did_you_mean(pattern, keys())} `qsft train --keys` "
            "lists all."
        )
    return "\n".join(lines)


def _widen(action: argparse.Action, types: set[Any]) -> None:
    """Let a key take what TRL's parser leaves out: JSON, lists beside text, null, a flag without a value."""
    read: Any = action.type
    if types <= {bool, NoneType}:
        action.nargs = "?"
        action.const = True
    elif list in types:
        action.nargs = "+"
    elif dict in types or (str in types and types & {int, bool}):
        read = read_word
    if action.choices is not None and NoneType in types:
        action.choices = [*action.choices, None]
    action.type = _value_reader(read, types, action.dest)


def _value_reader(read: Any, types: set[Any], name: str) -> Callable[[str], Any]:
    """Return the function that argparse reads the words of one key with."""

    def convert(word: str) -> Any:
        # `none` stays a word: report_to has a value of that name.
        value = None if word in ("null", "None") else read(word)
        if value is None and NoneType not in types:
            raise argparse.ArgumentTypeError("null is not possible here: leave the key out to keep its default")
        if isinstance(value, float) and not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"{word} is not a finite number")
        if name in NON_NEGATIVE and isinstance(value, int | float) and value < 0:
            raise argparse.ArgumentTypeError(f"{word} is negative")
        if dict in types and not isinstance(value, dict | None):
            if str not in types:
                raise argparse.ArgumentTypeError(f'{word!r} is not a JSON object such as {{"name": 8}}')
            return word
        return value

    convert.__name__ = getattr(read, "__name__", "value")  # argparse's message is "invalid int value"
    return convert
