"""Read a recipe: a flat file that is YAML and Python at once, or any plain YAML, nested or not.

Every value is checked against the field it is meant for before anything is loaded, and an error names file and line.
`--key value` on the command line replaces a value; `--target_kwargs.eta 0.2` replaces one entry of a dict.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from qsft.files import shown
from qsft.recipe import PACKAGED
from qsft.recipe.keys import ORIGIN, RecipeSettings, keys, parse_words, read_word
from qsft.recipe.relaunch import LAUNCHER_OPTIONS
from qsft.validation import did_you_mean

LAUNCH_KEY = 'if __name__ == "__main__"'  # how YAML reads a recipe's last line, which is Python's
DEFAULT_TARGET = "target_sft"  # TargetSFTConfig's
MOST_VALUES = 10_000  # of a file with its aliases written out


@dataclass(frozen=True)
class Recipe:
    """A recipe's name and its values: checked, flat, overrides applied; what is absent keeps its default."""

    name: str
    path: Path | None
    values: Mapping[str, Any]
    output_dir: str  # unless it is set: runs/NAME-TARGET and the hyper-parameters given on the command line
    overrides: tuple[str, ...] = ()
    set_aside: Mapping[str, Any] = field(default_factory=dict)  # values of the file that the overrides made void

    def part(self, owner: Any) -> dict[str, Any]:
        return {item.name: self.values[item.name] for item in fields(owner) if item.name in self.values}

    @property
    def address(self) -> str:
        """What to type for it: the name of a packaged recipe, or its file from where the user is."""
        packaged = self.path is not None and self.path.parent == PACKAGED
        return self.name if packaged else shown(self.path or "")

    @property
    def eval_protocol(self) -> str | None:
        """The protocol for models trained with this target: its own in `target_protocols`, or `eval_protocol`."""
        by_target = self.values.get("target_protocols") or {}
        return by_target.get(self.values.get("target", DEFAULT_TARGET)) or self.values.get("eval_protocol")

    @property
    def settings(self) -> RecipeSettings:
        return RecipeSettings(**self.part(RecipeSettings))


def read_recipe(path_or_name: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, or the packaged one of that name, with `--key value` words applied."""
    path = find_recipe(path_or_name) if path_or_name is not None else None
    values = {} if path is None else read_values(path)
    given, inner = read_overrides(overrides)
    # What the file says about its target or its data set is void where the command line names another one.
    replaced = {key for key, value in given.items() if value != values.get(key)}
    said = {"target": ("target_kwargs",), "dataset_name": ORIGIN if "dataset_name" in values else ()}
    void = [key for about, some in said.items() if about in replaced for key in some if key in values]
    set_aside = {key: values.pop(key) for key in void}
    values |= given
    for key, entries in inner.items():
        values[key] = _as_dict(key, values.get(key)) | entries
    if "eval_protocol" in given:
        values.pop("target_protocols", None)
    hparams = _as_dict("target_kwargs", given.get("target_kwargs")) | inner.get("target_kwargs", {})
    name = path.stem if path else "run"
    output_dir = values.get("output_dir") or f"runs/{name}-{run_name(values.get('target', DEFAULT_TARGET), hparams)}"
    return Recipe(name, path, values, output_dir, tuple(overrides), set_aside)


def run_name(target: str, hparams: Mapping[str, Any]) -> str:
    """What a run's directory is called: the target and what is special about it.

    >>> run_name("target_sft", {"eta": 0.2})
    'target_sft-eta0.2'
    """
    return "-".join([target, *(f"{key}{value}" for key, value in hparams.items())])


def find_recipe(path_or_name: str | Path) -> Path:
    path = Path(path_or_name)
    if path.is_file():
        return path
    packaged = {file.stem: file for file in packaged_recipes()}
    if path.stem in packaged and len(path.parts) == 1:
        return packaged[path.stem]
    raise FileNotFoundError(
        f"there is no recipe {str(path_or_name)!r}: no such file, and no recipe of that name comes with qsft."
        f"{did_you_mean(path.stem, packaged)} Packaged recipes: {', '.join(sorted(packaged))}."
    )


def is_recipe(name: str) -> bool:
    """Whether a name is that of a recipe: a YAML file, or a recipe that comes with qsft."""
    return name.endswith((".yaml", ".yml")) or name in {path.stem for path in packaged_recipes()}


def packaged_recipes() -> list[Path]:
    return sorted(PACKAGED.glob("*.yaml"))


def read_values(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    for key, value, place in _yaml_entries(path):
        _refuse_unknown(key, place)
        text = json.dumps(value, default=str) if isinstance(value, dict | list | None) else str(value)
        try:
            [(name, parsed)] = parse_words([f"--{key}={text}"])[0].items()
        except ValueError as error:
            raise ValueError(f"{place}: {str(error).removeprefix('--')}") from None
        if name in places:
            raise ValueError(f"{place}: {key} is already set at {places[name]}.")
        values[name], places[name] = parsed, place
    return values


def _yaml_entries(path: Path) -> list[tuple[str, Any, str]]:
    """(key, value, file:line) as YAML reads them, or an error that names the line; no tag of it ever runs code."""
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            raise ValueError(f"{path}: a recipe is a list of `key: value` lines, but this file is not.")
        _refuse_endless(root, path)
        return list(_flatten(loader, root, path))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = str(getattr(error, "problem", None) or error).splitlines()[0]
        raise ValueError(f"{path}{f':{mark.line + 1}' if mark else ''}: not YAML: {problem}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file in UTF-8 ({error}). Save it as UTF-8.") from error
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply. A recipe is a list of `key: value` lines.") from None


def _refuse_endless(root: yaml.Node, path: Path) -> None:
    """Aliases can make a small file refer to itself, or stand for billions of values."""
    waiting, count = [root], 0
    while waiting:
        node, count = waiting.pop(), count + 1
        if count > MOST_VALUES:
            where = f"{path}:{node.start_mark.line + 1}"
            raise ValueError(f"{where}: more than {MOST_VALUES:,} values with the aliases written out: write them.")
        if isinstance(node, yaml.CollectionNode):
            waiting += [n for item in node.value for n in (item if isinstance(item, tuple) else (item,))]


def _flatten(loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path) -> Iterator[tuple[str, Any, str]]:
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key == LAUNCH_KEY:
            continue
        if key not in keys() and isinstance(value_node, yaml.MappingNode):  # a section, as in a nested file
            yield from _flatten(loader, value_node, path)
        else:
            place = f"{path}:{key_node.start_mark.line + 1}"
            yield key, loader.construct_object(value_node, deep=True), place


def read_overrides(words: Sequence[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The values that the words of a command line give to keys, and those to entries of a dict: --target_kwargs.eta."""
    given, rest = parse_words(words)
    inner: dict[str, dict[str, Any]] = {}
    while rest:
        option, equals, value = rest.pop(0).partition("=")
        key, _, entry = option.removeprefix("--").partition(".")
        if not option.startswith("--"):
            raise ValueError(f"{option!r} is no option, and no option before it takes it. Write `--key value`.")
        _refuse_unknown(key, option)
        if not equals and (not rest or rest[0].startswith("--")):
            raise ValueError(f"{option}: a value is missing.")
        inner.setdefault(keys()[key].dest, {})[entry] = read_word(value if equals else rest.pop(0))
    return given, inner


def _refuse_unknown(name: str, place: str) -> None:
    if name in LAUNCHER_OPTIONS:
        raise ValueError(
            f"{place}: {name!r} is an option of the launcher, not a key of a recipe. Give it to `qsft train` together "
            "with --accelerate_config ddp (or fsdp2, zero3, cpu, a file)."
        )
    if name not in keys():
        raise ValueError(f"{place}: {name!r} is not a key.{did_you_mean(name, keys())} `qsft train --keys` lists all.")


def _as_dict(key: str, value: Any) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise ValueError(f"{key}: {value!r} is not a dict, so it has no entries to replace.")
