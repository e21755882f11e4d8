"""The data-level methods by name: functions whose arguments are the settings and whose docstrings explain them."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from qsft.curate.context import Kept
from qsft.curate.critical import critical
from qsft.curate.grape import grape
from qsft.curate.rft import rft
from qsft.curate.self_distill import self_distill
from qsft.curate.star import star
from qsft.targets.did_you_mean import did_you_mean

Method = Callable[..., list[Kept]]
METHODS: dict[str, Method] = {method.__name__: method for method in (rft, star, grape, self_distill, critical)}
VERIFYING = frozenset(METHODS) - {"grape"}  # what needs a verifier
LOOKS_INSIDE = frozenset({"grape", "critical"})  # what needs the model itself, so no engine that only draws


class Setting(NamedTuple):
    """One setting of a method."""

    kind: type
    default: Any
    help: str


def find_method(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}.{did_you_mean(name, METHODS)} Known: {', '.join(METHODS)}.")
    return METHODS[name]


def settings_of(method: Method) -> dict[str, Setting]:
    """A method's settings: type and default from its signature, help from its docstring."""
    lines = [line.split(None, 1) for line in inspect.getdoc(method).splitlines()]  # type: ignore[union-attr]
    helps = {words[0]: words[1] for words in lines if len(words) == 2}
    keywords = [p for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
    return {p.name: Setting(p.annotation, p.default, helps[p.name]) for p in keywords}


def summary(method: Method) -> str:
    """What a method does to a data set, in one line."""
    return str(inspect.getdoc(method)).splitlines()[0]


def check_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a method, those given checked; what is not given has its default."""
    known = settings_of(find_method(name))
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{name} has no setting {key!r}.{did_you_mean(key, known)} It has {', '.join(known)}.")
        kind = known[key].kind
        numeric = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not numeric and type(value) is not kind:
            raise ValueError(f"{name}: --{key} {value!r} must be {kind.__name__}, such as {known[key].default!r}.")
    return {key: given.get(key, setting.default) for key, setting in known.items()}
