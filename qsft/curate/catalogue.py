"""The data-level methods by name, and their settings: types and defaults from signatures, help from docstrings."""

import argparse
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, get_args

from qsft.curate.likely import critical, grape
from qsft.curate.own_words import rft, self_distill, star
from qsft.validation import did_you_mean

METHODS: dict[str, Callable[..., Any]] = {one.__name__: one for one in (rft, star, grape, self_distill, critical)}


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a method is run, beside its own settings. Each may stand in a recipe's key `curate`.

    gold                  column of the gold answer; boxed: the demonstration's last \\boxed{}; module:function(row) →
                          answer (default: the usual names)
    verifier              module:function(response, row) → bool, instead of the evaluator's grading
    question_column       column of the question, where the data set is in none of TRL's formats
    response_column       column of the response, likewise
    limit                 use only this many rows, the first ones
    backend               auto, transformers or vllm
    dtype                 float32, bfloat16, …; auto is bfloat16 on a GPU
    rows_at_once          responses drawn at once (default: what memory allows)
    tensor_parallel_size  GPUs that vLLM spreads one model over
    fresh                 delete what an earlier run left in the directory first
    """

    gold: str | None = None
    verifier: str | None = None
    question_column: str | None = None
    response_column: str | None = None
    limit: int | None = None
    backend: str = "auto"
    dtype: str = "auto"
    rows_at_once: int | None = None
    tensor_parallel_size: int = 1
    fresh: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """The options among values that hold others too; None is the default."""
        return cls(**{item.name: values[item.name] for item in fields(cls) if values.get(item.name) is not None})


class Setting(NamedTuple):
    """One setting of a method, or one option of all."""

    kind: type
    default: Any
    help: str


DRAWING = {  # of every method that draws responses: its further arguments
    "top_p": Setting(float, 1.0, "sample from the most likely tokens that together have this probability"),
    "max_new_tokens": Setting(int, 2048, "longest response; one that is cut off is never kept"),
    "seed": Setting(int, 0, "seed of all samples"),
}


def find_method(name: str) -> Callable[..., Any]:
    if name not in METHODS:
        raise ValueError(f"unknown method {name!r}.{did_you_mean(name, METHODS)} Known: {', '.join(METHODS)}.")
    return METHODS[name]


def settings_of(method: Callable[..., Any]) -> dict[str, Setting]:
    """The settings of a method (or Options): type and default from its signature, help from its docstring."""
    helps = dict(re.findall(r"^(\w+)  +(.+(?:\n  .+)*)", str(inspect.getdoc(method)), re.MULTILINE))
    found: dict[str, Setting] = {}
    for name, one in inspect.signature(method).parameters.items():
        if one.kind is one.KEYWORD_ONLY:
            kind = (get_args(one.annotation) or (one.annotation,))[0]
            found[name] = Setting(kind, one.default, " ".join(helps[name].split()))
        elif one.kind is one.VAR_KEYWORD:
            found |= DRAWING
    return found


def summary(method: Callable[..., Any]) -> str:
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


def method_parser(method: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"qsft curate {method}",
        usage=f"qsft curate {method} [RECIPE] --out DIR [--dataset_name DATA --model MODEL] [--key value ...]",
        description=summary(find_method(method)),
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the data set goes")
    parser.add_argument("--model", help="directory or hub id (default: the recipe's model_name_or_path)")
    group = parser.add_argument_group("how it is run")
    for place, settings in ((parser, settings_of(find_method(method))), (group, settings_of(Options))):
        for key, (kind, default, text) in settings.items():
            # A lone --fresh says true, and so does --fresh true.
            how = {"type": true_or_false, "nargs": "?", "const": True} if kind is bool else {"type": kind}
            shown = text if default is None else f"{text} (default: {default!r})"
            place.add_argument(f"--{key}", metavar=key.upper(), help=shown.replace("%", "%%"), **how)
    return parser


def true_or_false(word: str) -> bool:
    if word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word.lower() == "true"
