"""Data-level methods by name: each registers itself with its title, its needs and a dataclass of settings.

Nothing here imports torch, and neither do the methods at import time, so that `qsft curate METHOD --help` is fast.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from qsft.validation import check_range, did_you_mean

if TYPE_CHECKING:
    from qsft.inference.sampling import Sampling

ORIGIN = "curated"  # column of a curated row: where its response comes from
DEMONSTRATION = "demonstration"  # the origin of a row's own response

METHOD_MODULES = ("rft", "star", "grape", "self_distill", "critical")  # the modules that register a method


class Need(StrEnum):
    """What a method needs beside rows and a model to sample from."""

    VERIFIER = "verifier"  # responses are verified: against a gold answer, or by the user's function
    GOLD = "gold"  # the gold answer itself, also with the user's function
    WEIGHTS = "weights"  # the model's logits, so the model runs in this process and not in an engine
    TRAINING = "training"  # the model is trained between rounds


@dataclass(frozen=True)
class CurationMethod:
    """A registered method.

    Args:
        title: what it does, in one line.
        reference: the publication.
        settings: a dataclass; the metadata of its fields holds their help.
        run: run(exercises, context, settings) → the rows to keep.
        needs: see `Need`.
        target: the target that its data set is made for.
    """

    name: str
    title: str
    reference: str
    settings: type
    run: Callable[..., Any]
    needs: frozenset[Need]
    target: str = "sft"


_METHODS: dict[str, CurationMethod] = {}


def register(
    *, title: str, reference: str, settings: type, needs: Iterable[Need], target: str = "sft"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the method of its name."""

    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        name = run.__name__
        _METHODS[name] = CurationMethod(name, title, reference, settings, run, frozenset(needs), target)
        return run

    return add


def all_methods() -> dict[str, CurationMethod]:
    """Every method by name, in alphabetical order."""
    for module in METHOD_MODULES:
        import_module(f"qsft.curate.{module}")
    return dict(sorted(_METHODS.items()))  # not in the order in which modules happened to be imported


def find_method(name: str) -> CurationMethod:
    methods = all_methods()
    if name not in methods:
        raise ValueError(f"unknown method {name!r}.{did_you_mean(name, methods)} Known: {', '.join(methods)}.")
    return methods[name]


# ---- settings ----


def setting(default: Any, text: str) -> Any:
    """A field of a settings dataclass with its help."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class SettingInfo:
    """One field of a settings dataclass: its type without None, its default and its help."""

    kind: type
    default: Any
    help: str


def describe_settings(settings: type) -> dict[str, SettingInfo]:
    """The fields of a settings dataclass by name."""
    hints = get_type_hints(settings)
    found = {}
    for item in fields(settings):
        kinds = [kind for kind in get_args(hints[item.name]) if kind is not type(None)] or [hints[item.name]]
        default = None if item.default is MISSING else item.default
        found[item.name] = SettingInfo(kinds[0], default, item.metadata["help"])
    return found


def make_settings(method: CurationMethod, given: Mapping[str, Any]) -> Any:
    """The settings of a method with these values; ValueError for an unknown name or a wrong type."""
    known = describe_settings(method.settings)
    for name, value in given.items():
        if name not in known:
            raise ValueError(
                f"{method.name} has no setting {name!r}.{did_you_mean(name, known)} It has {', '.join(known)}."
            )
        kind = known[name].kind
        is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
        if not is_number and type(value) is not kind:
            example = known[name].default
            raise ValueError(f"{method.name}: --{name} {value!r} must be {kind.__name__}, such as {example!r}.")
    return method.settings(**given)


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """The settings of every method that samples responses."""

    num_samples: int = setting(1, "responses per prompt")
    temperature: float = setting(0.7, "sampling temperature; 0 is greedy")
    top_p: float = setting(1.0, "sample from the most likely tokens that together have this probability")
    max_new_tokens: int = setting(2048, "maximum length of a response; a response that is cut off is never kept")
    seed: int = setting(0, "seed of all samples")

    def sampling(self) -> "Sampling":
        from qsft.inference.sampling import Sampling

        return Sampling(
            num_samples=self.num_samples,
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a method is run, beside its own settings. Each may stand in a recipe's key `curate`."""

    gold: str | None = setting(
        None,
        "column of the gold answer, boxed (the demonstration's last \\boxed{}), or module:function(row) → answer "
        "(default: a column with one of the usual names)",
    )
    verifier: str | None = setting(None, "module:function(response, row) → bool, instead of qsft.grade")
    question_column: str | None = setting(None, "column of the question, if the data set has none of TRL's formats")
    response_column: str | None = setting(None, "column of the response, if the data set has none of TRL's formats")
    limit: int | None = setting(None, "number of rows to use, the first ones (default: all)")
    backend: str = setting("auto", "auto, transformers or vllm")
    dtype: str = setting("auto", "float32, bfloat16, …; auto is bfloat16 on a GPU")
    sampling_batch_size: int | None = setting(None, "responses sampled at once (default: what memory allows)")
    tensor_parallel_size: int = setting(1, "number of GPUs for one model with vLLM")
    overwrite: bool = setting(False, "move the files of an earlier curation aside and start again")

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_range("limit", self.limit, 1)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Options":
        """The options among values that contain others too; None is the default."""
        return cls(**{item.name: values[item.name] for item in fields(cls) if values.get(item.name) is not None})
