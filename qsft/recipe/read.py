"""Read a recipe: a flat file that is YAML and Python at once, or any plain YAML, nested or not.

Every value is checked against the field it is meant for before anything is loaded, and an error names file and line.
`--key value` on the command line replaces a value; `--target_kwargs.eta 0.2` replaces one entry of a dict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from qsft.recipe.launcher import LAUNCHER_KEYS
from qsft.recipe.settings import ALIASES, ORIGIN, RecipeSettings, keys, run_name
from qsft.recipe.values import complaint, fits, loose, parse_words
from qsft.targets.checks import did_you_mean

LAUNCH_KEY = 'if __name__ == "__main__"'  # how YAML reads a recipe's last line, which is Python's
DEFAULT_TARGET = "target"  # TargetSFTConfig's
Owner = TypeVar("Owner")


@dataclass(frozen=True)
class Recipe:
    """A recipe's name and its values: checked, flat, overrides applied; what is absent keeps its default."""

    name: str
    path: Path | None
    values: Mapping[str, Any]
    overrides: tuple[str, ...] = ()
    set_aside: Mapping[str, Any] = field(default_factory=dict)  # values of the file that the overrides made void

    def part(self, owner: type[Owner]) -> dict[str, Any]:
        """The values that `owner` reads."""
        return {item.name: self.values[item.name] for item in fields(owner) if item.name in self.values}

    @property
    def settings(self) -> RecipeSettings:
        """The settings that neither the model nor the trainer knows."""
        return RecipeSettings(**self.part(RecipeSettings))

    @property
    def output_dir(self) -> str:
        """Where a run goes that says nothing else: apart from those with other words for the target."""
        hparams: dict[str, Any] = {}
        for key, value, _ in read_overrides(self.overrides):
            name, _, inner = key.partition(".")
            if name == "target_kwargs":
                hparams |= {inner: value} if inner else value or {}
        return f"runs/{self.name}-{run_name(self.values.get('target', DEFAULT_TARGET), hparams)}"


class Entry(NamedTuple):
    """One `key: value` and where it stands."""

    key: str
    value: Any
    place: str  # file:line, or the option itself

    @property
    def name(self) -> str:
        """How an error calls it."""
        return self.place if self.place.startswith("--") else f"{self.place}: {self.key}"


def read_recipe(path_or_name: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, or the packaged one of that name, with `--key value` words applied."""
    path = find_recipe(path_or_name) if path_or_name is not None else None
    entries = [] if path is None else read_entries(path)
    values = {entry.key: entry.value for entry in entries}
    given = list(read_overrides(overrides))
    set_aside = {key: values.pop(key) for key in _void(values, given)}
    for key, value, place in given:
        key, _, inner = key.partition(".")
        values[key] = {**_as_dict(values.get(key), place), inner: value} if inner else value
    values |= _own_protocol(values, given)
    return Recipe(path.stem if path else "run", path, values, tuple(overrides), set_aside)


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
    """The checked `key: value` pairs of a file; sections of a nested file are flattened."""
    try:
        loader = yaml.SafeLoader(path.read_text(encoding="utf-8"))
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"{path}{f':{mark.line + 1}' if mark else ''}: not YAML: {_first_line(error)}") from error
    if not isinstance(root, yaml.MappingNode):
        raise ValueError(f"{path}: a recipe is a list of `key: value` lines, but this file is not.")
    entries: dict[str, Entry] = {}
    for entry in _flatten(loader, root, path):
        if entry.key in entries:
            raise ValueError(f"{entry.name} is already set at {entries[entry.key].place}.")
        entries[entry.key] = _checked(entry)
    return list(entries.values())


def _flatten(loader: yaml.SafeLoader, node: yaml.MappingNode, path: Path) -> Iterator[Entry]:
    for key_node, value_node in node.value:
        place = f"{path}:{key_node.start_mark.line + 1}"
        key = str(loader.construct_object(key_node, deep=True))
        if key == LAUNCH_KEY:
            continue
        key = ALIASES.get(key, key)
        if key not in keys() and isinstance(value_node, yaml.MappingNode):  # a section, as in a nested file
            yield from _flatten(loader, value_node, path)
        else:
            yield Entry(key, loader.construct_object(value_node, deep=True), place)


def _checked(entry: Entry) -> Entry:
    key = _known(entry.key, entry.place)
    if entry.value == "None" or not fits(entry.value, key.hint):
        raise ValueError(f"{entry.name}: {complaint(entry.value, key.hint)}")
    return _chosen(entry)


def _chosen(entry: Entry) -> Entry:
    choices = keys()[entry.key].choices
    if choices and entry.value is not None and entry.value not in choices:
        raise ValueError(f"{entry.name}: {entry.value!r} is not one of {', '.join(map(str, choices))}.")
    return entry


def read_overrides(words: Sequence[str]) -> Iterator[Entry]:
    """The `--key value`, `--key=value` and `--flag` words of a command line as checked entries."""
    for key, values in _grouped(words):
        place = f"--{key}"
        name, _, inner = key.partition(".")
        name = ALIASES.get(name, name)
        hint = _known(name, place).hint
        if inner:
            yield Entry(f"{name}.{inner}", loose(" ".join(values)), place)
            continue
        try:
            value = parse_words(values, hint)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        yield _chosen(Entry(name, value, place))


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    groups: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            groups.append((key.replace("-", "_"), [value] if equals else []))
        elif groups:
            groups[-1][1].append(word)
        else:
            raise ValueError(f"{word!r} is not an option. Overrides are written `--key value`.")
    return iter(groups)


def _known(name: str, place: str) -> Any:
    if name in LAUNCHER_KEYS:
        raise ValueError(
            f"{place}: {name!r} is an option of the launcher, not a key of a recipe. Give it to `qsft train` together "
            "with --accelerate_config ddp (or fsdp2, zero3, cpu, a file)."
        )
    if name not in keys():
        raise ValueError(f"{place}: {name!r} is not a key.{did_you_mean(name, keys())} `qsft train --keys` lists all.")
    return keys()[name]


def _as_dict(value: Any, place: str) -> dict[str, Any]:
    if value is None or isinstance(value, dict):
        return value or {}
    raise ValueError(f"{place}: {value!r} is not a dict, so it has no entries to replace.")


def _first_line(error: Exception) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]
