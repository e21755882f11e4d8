"""Read a recipe: a flat file that is YAML and Python at once, or any plain YAML, nested or not.

Every value is checked against the field it is meant for before anything is loaded, and an error names file and line.
`--key value` on the command line replaces a value; `--target_kwargs.eta 0.2` replaces one entry of a dict.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from qsft.recipe.keys import ALIASES, ORIGIN, RecipeSettings, keys, parse_value, read_word
from qsft.recipe.relaunch import LAUNCHER_KEYS
from qsft.targets.did_you_mean import did_you_mean

LAUNCH_KEY = 'if __name__ == "__main__"'  # how YAML reads a recipe's last line, which is Python's
DEFAULT_TARGET = "target"  # TargetSFTConfig's
MOST_VALUES = 10_000  # of a file with its aliases written out
Owner = TypeVar("Owner")


@dataclass(frozen=True)
class Recipe:
    """A recipe's name and its values: checked, flat, overrides applied; what is absent keeps its default."""

    name: str
    path: Path | None
    values: Mapping[str, Any]
    output_dir: str  # unless it is set: runs/NAME-TARGET and the hyper-parameters given on the command line
    overrides: tuple[str, ...] = ()
    set_aside: Mapping[str, Any] = field(default_factory=dict)  # values of the file that the overrides made void

    def part(self, owner: type[Owner]) -> dict[str, Any]:
        """The values that `owner` reads."""
        return {item.name: self.values[item.name] for item in fields(owner) if item.name in self.values}

    @property
    def settings(self) -> RecipeSettings:
        """The settings that neither the model nor the trainer knows."""
        return RecipeSettings(**self.part(RecipeSettings))


class Entry(NamedTuple):
    """One value and where it stands: file:line or the option itself."""

    key: str
    value: Any
    place: str


def read_recipe(path_or_name: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, or the packaged one of that name, with `--key value` words applied."""
    path = find_recipe(path_or_name) if path_or_name is not None else None
    values = {} if path is None else {entry.key: entry.value for entry in read_entries(path)}
    given = list(read_overrides(overrides))
    set_aside = {key: values.pop(key) for key in _void(values, given)}
    hparams: dict[str, Any] = {}
    for key, value, place in given:
        key, _, inner = key.partition(".")
        values[key] = {**_as_dict(values.get(key), place), inner: value} if inner else value
        if key == "target_kwargs":
            hparams |= {inner: value} if inner else _as_dict(value, place)
    values |= _own_protocol(values, given)
    name = path.stem if path else "run"
    output_dir = values.get("output_dir") or f"runs/{name}-{run_name(values.get('target', DEFAULT_TARGET), hparams)}"
    return Recipe(name, path, values, output_dir, tuple(overrides), set_aside)


def run_name(target: str, hparams: Mapping[str, Any]) -> str:
    """What a run's directory is called: the target and what is special about it.

    >>> run_name("target", {"eta": 0.2})
    'target-eta0.2'
    """
    return "-".join([target, *(f"{key}{value}" for key, value in hparams.items())])


def _void(values: Mapping[str, Any], given: Sequence[Entry]) -> list[str]:
    """The file's keys that were said about its target or its data set, where the command line names another one."""
    replaced = {entry.key for entry in given if entry.value != values.get(entry.key)}
    said = {"target": ("target_kwargs",), "dataset": ORIGIN if "dataset" in values else ()}
    return [key for about, keys in said.items() if about in replaced for key in keys if key in values]


def _own_protocol(values: Mapping[str, Any], given: Sequence[Entry]) -> dict[str, str]:
    """The evaluation protocol that the file has for this target, unless the command line asks for another one."""
    own = (values.get("target_protocols") or {}).get(values.get("target", DEFAULT_TARGET))
    asked = any(entry.key == "eval_protocol" for entry in given)
    return {"eval_protocol": own} if own and not asked else {}


def find_recipe(path_or_name: str | Path) -> Path:
    """The file itself, or the recipe of that name that comes with the package."""
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


def packaged_recipes(folder: str = ".") -> list[Path]:
    """The recipes that come with qsft, or with folder="accelerate" the launch configurations."""
    directory = Path(str(files("qsft.recipe"))) / "files" / folder
    return sorted(directory.glob("*.yaml"))


def read_entries(path: Path) -> list[Entry]:
    """The checked values of a file; sections of a nested file are flattened."""
    entries: dict[str, Entry] = {}
    for key, value, place in _yaml_entries(path):
        if key in entries:
            raise ValueError(f"{place}: {key} is already set at {entries[key].place}.")
        words = [json.dumps(value, default=str) if isinstance(value, dict | list | None) else str(value)]
        entries[key] = _parsed(key, words, place, f"{place}: {key}")
    return list(entries.values())


def _yaml_entries(path: Path) -> list[Entry]:
    """What YAML makes of a file, or an error that names the line; no tag of it ever runs code."""
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
            raise ValueError(
                f"{path}:{node.start_mark.line + 1}: more than {MOST_VALUES:,} values with the aliases (*name) written "
                "out; one may refer to itself. Write the values themselves."
            )
        if isinstance(node, yaml.CollectionNode):
            waiting += [n for item in node.value for n in (item if isinstance(item, tuple) else (item,))]


def _flatten(loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path) -> Iterator[Entry]:
    for key_node, value_node in node.value:
        key = str(loader.construct_object(key_node, deep=True))
        if key == LAUNCH_KEY:
            continue
        key = ALIASES.get(key, key)
        if key not in keys() and isinstance(value_node, yaml.MappingNode):  # a section, as in a nested file
            yield from _flatten(loader, value_node, path)
        else:
            place = f"{path}:{key_node.start_mark.line + 1}"
            yield Entry(key, loader.construct_object(value_node, deep=True), place)


def read_overrides(words: Sequence[str]) -> Iterator[Entry]:
    """The `--key value`, `--key=value` and `--flag` words of a command line as checked entries."""
    for key, values in _grouped(words):
        name, _, inner = key.partition(".")
        name = ALIASES.get(name, name)
        if inner:
            _refuse_unknown(name, f"--{key}")
            yield Entry(f"{name}.{inner}", read_word(" ".join(values)), f"--{key}")
        else:
            yield _parsed(name, values, f"--{key}", f"--{key}")


def _grouped(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            groups.append((key.replace("-", "_"), [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            raise ValueError(f"{word!r} is not an option. Overrides are written `--key value`.")
    return groups


def _parsed(key: str, words: Sequence[str], place: str, name: str) -> Entry:
    _refuse_unknown(key, place)
    try:
        return Entry(keys()[key].dest, parse_value(key, words), place)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _refuse_unknown(name: str, place: str) -> None:
    if name in LAUNCHER_KEYS:
        raise ValueError(
            f"{place}: {name!r} is an option of the launcher, not a key of a recipe. Give it to `qsft train` together "
            "with --accelerate_config ddp (or fsdp2, zero3, cpu, a file)."
        )
    if name not in keys():
        raise ValueError(f"{place}: {name!r} is not a key.{did_you_mean(name, keys())} `qsft train --keys` lists all.")


def _as_dict(value: Any, place: str) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise ValueError(f"{place}: {value!r} is not a dict, so it has no entries to replace.")
