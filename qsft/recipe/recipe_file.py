"""Read a recipe: a flat file that is YAML and Python at once, or any plain YAML, nested or not.

Every value is checked against the field it is meant for before anything is loaded, and an error names file and line.
`--key value` on the command line replaces a value; `--target_kwargs.eta 0.2` replaces one entry of a dict, and so does
`--eta 0.2` for a hyper-parameter of the target.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from qsft.files import shown
from qsft.processes import is_main
from qsft.recipe import packaged_directory
from qsft.recipe.keys import DATASET_KEYS, RecipeSettings, keys, parse_words, read_word
from qsft.recipe.relaunch import LAUNCHER_OPTIONS
from qsft.redaction import protect
from qsft.targets.registry import DEFAULT_TARGET, TARGETS
from qsft.validation import did_you_mean

LAUNCH_KEY = 'if __name__ == "__main__"'  # how YAML reads a recipe's last line, which is Python's
# Two ways to name a teacher: the first of a pair, given as an option, replaces the second.
TEACHER_KEYS = (("teacher", "teacher_model_name_or_path"), ("teacher_model_name_or_path", "teacher"))
MAX_VALUES = 10_000  # of a file with its aliases written out
# What users of other libraries try, and difflib does not find.
OTHER_NAMES = {
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "grad_accum": "gradient_accumulation_steps",
    "model": "model_name_or_path",
    "student": "model_name_or_path",
    "dataset": "dataset_name",
    "lora_rank": "lora_r",
    "max_seq_length": "max_length",
    "wd": "weight_decay",
}


@dataclass(frozen=True)
class Recipe:
    """A recipe's values: checked, flat, overrides applied. A key that is absent has its default.

    Args:
        name: stem of the file, or "run" without one.
        path: the file, if any.
        values: the values by key.
        output_dir: `output_dir` if it is set, or runs/NAME-TARGET with the hyper-parameters of the command line.
        overrides: the command line.
        set_aside: values of the file that do not apply because of an override, such as those of another data set.
    """

    name: str
    path: Path | None
    values: Mapping[str, Any]
    output_dir: str
    overrides: tuple[str, ...] = ()
    set_aside: Mapping[str, Any] = field(default_factory=dict)

    def part(self, owner: Any) -> dict[str, Any]:
        """Return the values of the keys that are fields of a dataclass."""
        return {item.name: self.values[item.name] for item in fields(owner) if item.name in self.values}

    @property
    def is_packaged(self) -> bool:
        return self.path is not None and self.path.parent == packaged_directory()

    @property
    def address(self) -> str:
        """What to type for the recipe: the name of a packaged one, or its file."""
        return self.name if self.is_packaged else shown(self.path or "")

    @property
    def eval_protocol(self) -> str | None:
        """The protocol for models trained with this target: its own in `target_protocols`, or `eval_protocol`."""
        by_target = self.values.get("target_protocols") or {}
        return by_target.get(self.values.get("target", DEFAULT_TARGET)) or self.values.get("eval_protocol")

    @property
    def settings(self) -> RecipeSettings:
        return RecipeSettings(**self.part(RecipeSettings))


def read_recipe(
    path_or_name: str | Path | None, overrides: Sequence[str] = (), other_options: Iterable[str] = ()
) -> Recipe:
    """Return the recipe in a file, or the packaged one of that name, with the command line's options applied.

    Args:
        path_or_name: A file, the name of a packaged recipe, or None for a recipe of options alone.
        overrides: words such as `--key value` and `--key=value`.
        other_options: names of the command's own options, which are suggested for a misspelled key as well.

    Raises:
        FileNotFoundError: there is no such recipe.
        ValueError: A key or a value is not valid.
    """
    path = None if path_or_name is None else find_recipe(path_or_name)
    values = {} if path is None else read_values(path)
    given, entries = read_overrides(overrides, str(values.get("target", DEFAULT_TARGET)), other_options)
    set_aside = _drop_values_of_replaced(values, given)
    values |= given
    for key, changed in entries.items():
        values[key] = _as_dict(key, values.get(key)) | changed
    if "eval_protocol" in given:
        values.pop("target_protocols", None)
    values = protect(values)
    name = "run" if path is None else path.stem
    hparams = _as_dict("target_kwargs", given.get("target_kwargs")) | entries.get("target_kwargs", {})
    default_output_dir = f"runs/{name}-{run_name(values.get('target', DEFAULT_TARGET), hparams)}"
    return Recipe(name, path, values, values.get("output_dir") or default_output_dir, tuple(overrides), set_aside)


def _drop_values_of_replaced(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Remove and return what the file sets for its own target, data set or teacher, where the options name another."""
    described: dict[str, tuple[str, ...]] = {"target": ("target_kwargs",)}
    if "dataset_name" in values:
        described["dataset_name"] = DATASET_KEYS
    dropped = {}
    for key, dependent in described.items():
        if key in given and given[key] != values.get(key):
            for name in dependent:
                if name in values:
                    dropped[name] = values.pop(name)
    for key, other in TEACHER_KEYS:
        if key in given and other not in given and other in values:
            dropped[other] = values.pop(other)
    return dropped


def announce_recipe(recipe: Recipe) -> None:
    """Print which file was read, on the main process."""
    if recipe.path is None or not is_main():
        return
    origin = "comes with qsft" if recipe.is_packaged else "local file"
    print(f"recipe: {shown(recipe.path)} ({origin})", file=sys.stderr, flush=True)


def run_name(target: str, hparams: Mapping[str, Any]) -> str:
    """Return the name of a run's directory: the target and its hyper-parameters.

    >>> run_name("target_sft", {"eta": 0.2})
    'target_sft-eta0.2'
    """
    return "-".join([target, *(f"{key}{value}" for key, value in hparams.items())])


def find_recipe(path_or_name: str | Path) -> Path:
    """Return the file of a recipe.

    A bare name is that of a packaged recipe, also where a file of that name exists here; `demo.yaml` and `./demo` are
    files.
    """
    packaged = {file.stem: file for file in packaged_recipes()}
    text = str(path_or_name)
    if text in packaged:
        return packaged[text]
    path = Path(path_or_name)
    if path.is_file():
        return path
    if not text.endswith((".yaml", ".yml")) and ("/" in text or path.is_dir()):
        raise FileNotFoundError(
            f"there is no recipe {text!r}. If it is a model, write --model_name_or_path {text}, and give its data with "
            "--dataset_name."
        )
    raise FileNotFoundError(
        f"there is no recipe {text!r}: no such file, and no recipe of that name comes with qsft."
        f"{did_you_mean(path.stem, packaged)} Packaged recipes: {', '.join(sorted(packaged))}."
    )


def is_recipe(name: str) -> bool:
    """Whether a name is that of a recipe: a YAML file, or a recipe that comes with qsft."""
    return name.endswith((".yaml", ".yml")) or name in {path.stem for path in packaged_recipes()}


def packaged_recipes() -> list[Path]:
    return sorted(packaged_directory().glob("*.yaml"))


def read_values(path: Path) -> dict[str, Any]:
    """Return the values of a file by key.

    Raises:
        ValueError: the file is not a recipe; the message has the line.
    """
    values: dict[str, Any] = {}
    lines: dict[str, str] = {}
    for key, value, line in _yaml_entries(path):
        _check_known(key, line)
        text = json.dumps(value, default=str) if isinstance(value, dict | list | None) else str(value)
        try:
            parsed, _ = parse_words([f"--{key}={text}"])
        except ValueError as error:
            raise ValueError(f"{line}: {str(error).removeprefix('--')}") from None
        [(name, parsed_value)] = parsed.items()
        if name in lines:
            raise ValueError(f"{line}: {key} is already set at {lines[name]}.")
        values[name] = parsed_value
        lines[name] = line
    return values


def _yaml_entries(path: Path) -> list[tuple[str, Any, str]]:
    """Return (key, value, file:line) of every entry. No YAML tag runs code."""
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{path}: a recipe is a list of `key: value` lines, but this file is not.")
        _check_size(root, path)
        return list(_flatten(loader, root, path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise ValueError(f"{place}: not YAML: {problem}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file in UTF-8 ({error}). Save it as UTF-8.") from error
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply. A recipe is a list of `key: value` lines.") from None


def _check_size(root: yaml.Node, path: Path) -> None:
    """Raise ValueError for a file whose aliases refer to themselves or stand for billions of values."""
    waiting: list[yaml.Node] = [root]
    count = 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MAX_VALUES:
            place = f"{path}:{node.start_mark.line + 1}"
            raise ValueError(f"{place}: more than {MAX_VALUES:,} values with the aliases written out. Write fewer.")
        if isinstance(node, yaml.MappingNode):
            for pair in node.value:
                waiting += pair
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value


def _flatten(loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any, str]]:
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key == LAUNCH_KEY:
            continue
        if key not in keys() and isinstance(value_node, yaml.MappingNode):  # a section of a nested file
            yield from _flatten(loader, value_node, path)
        else:
            place = f"{path}:{key_node.start_mark.line + 1}"
            yield key, loader.construct_object(value_node, deep=True), place


def read_overrides(
    words: Sequence[str], target: str = DEFAULT_TARGET, other_options: Iterable[str] = ()
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return what a command line gives: values by key, and entries of dict keys (--target_kwargs.eta 0.2).

    Args:
        words: the command line.
        target: the file's target; `--eta 0.2` is an entry of target_kwargs if the target has that hyper-parameter.
        other_options: what is suggested for a misspelled key besides keys.
    """
    given, rest = parse_words(words)
    target = str(given.get("target", target))
    hparams = TARGETS[target].hyper_parameters if target in TARGETS else {}
    entries: dict[str, dict[str, Any]] = {}
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        if not option.startswith("--"):
            raise ValueError(
                f"{option!r} is not an option, and no option before it takes a value. Write `--key value`."
            )
        key, dot, entry = option.removeprefix("--").partition(".")
        if not dot and key in hparams:
            key, entry = "target_kwargs", key
        _check_hyper_parameter(key, option, target)
        _check_known(key, option, [*hparams, *other_options])
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise ValueError(f"{option}: a value is missing.")
            value = rest.pop(0)
        entries.setdefault(keys()[key].dest, {})[entry] = read_word(value)
    return given, entries


def _check_hyper_parameter(name: str, place: str, target: str) -> None:
    """Raise ValueError for a hyper-parameter that other targets have."""
    if name in keys() or target not in TARGETS:
        return
    having = [other for other, entry in TARGETS.items() if name in entry.hyper_parameters]
    if having:
        raise ValueError(
            f"{place}: the target {target} has no hyper-parameter {name!r}. It takes: "
            f"{', '.join(TARGETS[target].hyper_parameters) or 'none'}. {', '.join(having)} "
            f"{'has' if len(having) == 1 else 'have'} {name!r}."
        )


def _check_known(name: str, place: str, others: Iterable[str] = ()) -> None:
    """Raise ValueError for what is not a key; `others` are suggested as well."""
    if name in LAUNCHER_OPTIONS:
        raise ValueError(
            f"{place}: {name!r} is an option of the launcher, not a key of a recipe. Give it to `qsft train` together "
            "with --accelerate_config ddp (or fsdp2, zero3, cpu, a file)."
        )
    if name not in keys():
        suggestion = (
            f" Did you mean {OTHER_NAMES[name]!r}?" if name in OTHER_NAMES else did_you_mean(name, [*keys(), *others])
        )
        raise ValueError(f"{place}: {name!r} is not a key.{suggestion} `qsft train --keys` lists all.")


def _as_dict(key: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, dict):
        return value
    raise ValueError(f'{key}: {value!r} is not a dict, so it has no entries to replace. Write it as {{"name": value}}.')
