"""How a method is run, beside its own settings: the options of `qsft curate`."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args

from qsft.curate.methods import find_method, settings_of, summary


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Options:
    """Each field is an option of the command and may stand in a recipe's key `curate`."""

    gold: str | None = _option(
        None,
        "column of the gold answer; boxed: the demonstration's last \\boxed{}; module:function(row) → answer (default: "
        "the usual names)",
    )
    verifier: str | None = _option(None, "module:function(response, row) → bool, instead of the evaluator's grading")
    question_column: str | None = _option(
        None, "column of the question, where the data set is in none of TRL's formats"
    )
    response_column: str | None = _option(None, "column of the response, likewise")
    limit: int | None = _option(None, "only the first so many rows")
    backend: str = _option("auto", "auto, transformers or vllm")
    dtype: str = _option("auto", "float32, bfloat16, … (default: bfloat16 on a GPU)")
    rows_at_once: int | None = _option(None, "responses drawn at once (default: what memory allows)")
    tensor_parallel_size: int = _option(1, "GPUs that vLLM spreads one model over")
    fresh: bool = _option(False, "delete what an earlier run left in the directory first")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """The options among values that hold others too; None is the default."""
        given = {item.name: values.get(item.name) for item in fields(cls)}
        return cls(**{name: value for name, value in given.items() if value is not None})


def method_parser(method: str) -> argparse.ArgumentParser:
    """The options of `qsft curate METHOD`: where, the method's own settings, and how it is run."""
    parser = argparse.ArgumentParser(
        prog=f"qsft curate {method}",
        usage=f"qsft curate {method} [RECIPE] --out DIR [--dataset DATA --model MODEL] [--key value ...]",
        description=summary(find_method(method)),
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the data set goes")
    parser.add_argument("--model", help="directory or hub id (default: the recipe's model_name_or_path)")
    for key, setting in settings_of(find_method(method)).items():
        kind = true_or_false if setting.kind is bool else setting.kind
        text = f"{setting.help} (default: {setting.default!r})".replace("%", "%%")
        parser.add_argument(f"--{key}", type=kind, metavar=key.upper(), help=text)
    group = parser.add_argument_group("how it is run")
    for item in fields(Options):
        kinds = [kind for kind in get_args(item.type) or (item.type,) if kind is not type(None)]
        how = {"action": "store_true"} if item.type is bool else {"type": kinds[0], "metavar": item.name.upper()}
        group.add_argument(f"--{item.name}", default=None, help=item.metadata["help"].replace("%", "%%"), **how)
    return parser


def true_or_false(word: str) -> bool:
    """What a word of the command line says."""
    if word.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither true nor false")
    return word.lower() == "true"
