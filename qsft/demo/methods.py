"""The methods that the demo compares: targets with hyper-parameters, and data-level methods."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from qsft.recipe.keys import read_word
from qsft.targets.registry import make_target
from qsft.targets.target import Target

LEARNING_RATE_KEY = "lr"  # sets a method's own learning rate where hyper-parameters are given
OWN_LEARNING_RATES = {"dft": 1e-3}  # by target: DFT degrades at the learning rate of the others


@dataclass(frozen=True)
class Method:
    """A named target with its hyper-parameters, as one line of the demo's table.

    Args:
        label: the name in tables.
        target_name: the name in `qsft targets`.
        learning_rate: replaces the scenario's learning rate.
        control: what the method is, if it is shown as a control and not ranked among the paper's methods.
        curate: the data-level method that makes its training data; None: the noisy demonstrations themselves.
    """

    label: str
    target_name: str
    hyper_parameters: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    control: str = ""
    curate: str | None = None

    @property
    def target(self) -> Target:
        return make_target(self.target_name, **self.hyper_parameters)

    @property
    def reads_teacher(self) -> bool:
        return "teacher" in self.target.needs

    @property
    def slug(self) -> str:
        """The name of the method's directory."""
        parts = [self.target_name]
        if self.curate is not None:
            parts.insert(0, self.curate)
        parts += [f"{key}{value}" for key, value in self.hyper_parameters.items()]
        if self.learning_rate not in (None, OWN_LEARNING_RATES.get(self.target_name)):
            parts.append(f"{LEARNING_RATE_KEY}{self.learning_rate:g}")
        return "-".join(parts)


METHODS = (
    Method("SFT", "sft"),
    Method("DFT", "dft", learning_rate=OWN_LEARNING_RATES["dft"]),
    Method("KD 0.8", "kd_hybrid", {"c": 0.8}),
    Method("KD 1.0", "kd"),
    Method("KD sharpened", "kd", {"temperature": 0.5}, control="the teacher at temperature 0.5"),
    Method("Beyond log", "beyond_log", {"alpha": 0.5}, control="a loss without a teacher"),
    Method("Target-SFT", "target_sft", {"eta": 0.5}),
)
DATA_LEVEL_METHODS = (
    Method("RFT", "sft", curate="rft"),
    Method("STaR", "sft", curate="star"),
    Method("GRAPE", "sft", curate="grape"),
    # Only critical tokens are trained: at the learning rate of the others the model forgets everything between them.
    Method("CFT", "cft", learning_rate=2e-4, curate="critical"),
)


def parse_methods(words: Sequence[str]) -> tuple[Method, ...]:
    """Return the methods of `--targets`: `sft`, `target_sft:eta=0.2`, `kd:temperature=0.5,lr=1e-3`.

    Raises:
        ValueError: for an unknown target or hyper-parameter, a part that is not key=value, or a repeated method.
    """
    methods = tuple(_parse_method(word) for word in words)
    counts = Counter(method.label for method in methods)
    repeated = [label for label, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(f"--targets names {', '.join(repeated)} twice. Name each once.")
    return methods


def _parse_method(word: str) -> Method:
    """Return the method of METHODS that a word describes, or a new one with the word as its label."""
    target_name, _, rest = word.partition(":")
    hyper_parameters: dict[str, Any] = {}
    for part in rest.split(","):
        if not part:
            continue
        key, _, value = part.partition("=")
        if not value:
            raise ValueError(f"--targets {word!r}: {part!r} is not key=value. Write for example target_sft:eta=0.2.")
        hyper_parameters[key] = read_word(value)
    learning_rate = hyper_parameters.pop(LEARNING_RATE_KEY, OWN_LEARNING_RATES.get(target_name))
    if learning_rate is not None:
        learning_rate = float(learning_rate)
    method = Method(word, target_name, hyper_parameters, learning_rate)
    for known in METHODS:
        if known.target == method.target and known.learning_rate == learning_rate:
            return known
    return method


def find_data_level_methods(words: Sequence[str]) -> tuple[Method, ...]:
    """Return the methods of `--methods`: names of `qsft curate`, separated by spaces or commas."""
    known = {method.curate: method for method in DATA_LEVEL_METHODS}
    names = dict.fromkeys(name for word in words for name in word.split(",") if name)
    for name in names:
        if name not in known:
            available = ", ".join(str(method.curate) for method in DATA_LEVEL_METHODS)
            raise ValueError(
                f"--methods: the demo has no data-level method {name!r}. Choose from {available}. (self_distill needs "
                "a base with a longer context than the demo's.)"
            )
    return tuple(known[name] for name in names)
