"""The methods the demo compares: rows of the table of targets, each with a name for people."""

from dataclasses import dataclass, field
from typing import Any

from qsft.targets.target import Target
from qsft.targets.zoo import make_target

RATE = "lr"  # in the place of a hyper-parameter: the method's own learning rate
CALM = {"dft": 1e-3}  # the p-loss degrades at the others' learning rate


@dataclass(frozen=True)
class Method:
    """A row of the table with its hyper-parameters.

    control  what it is if it is shown, but not ranked as a method of the paper
    curate   the data-level method that makes its demonstrations, if they are not the demonstrators' own
    """

    label: str
    row: str
    hparams: dict[str, Any] = field(default_factory=dict)
    learning_rate: float | None = None
    control: str = ""
    curate: str | None = None

    @property
    def target(self) -> Target:
        return make_target(self.row, **self.hparams)

    @property
    def slug(self) -> str:
        """A name for a directory."""
        hparams = [f"{key}{value}" for key, value in self.hparams.items()]
        if self.learning_rate not in (None, CALM.get(self.row)):
            hparams.append(f"{RATE}{self.learning_rate:g}")
        return "-".join([*filter(None, [self.curate]), self.row, *hparams])


METHODS = (
    Method("SFT", "sft"),
    Method("SFT(p)", "dft", learning_rate=CALM["dft"]),
    Method("KD 0.8", "kd_hybrid", {"c": 0.8}),
    Method("KD 1.0", "kd"),
    Method("KD sharpened", "kd", {"temperature": 0.5}, control="the teacher at temperature 0.5"),
    Method("Beyond log", "beyond_log", {"alpha": 0.5}, control="a loss without a teacher"),
    Method("Target-SFT", "target", {"eta": 0.5}),
)
DATA_LEVEL = (
    Method("RFT", "sft", curate="rft"),
    Method("STaR", "sft", curate="star"),
    Method("GRAPE", "sft", curate="grape"),
    # Only its critical tokens are trained: at the others' learning rate everything between them is forgotten.
    Method("CFT", "cft", learning_rate=2e-4, curate="critical"),
)


def find_data_level(words: list[str]) -> tuple[Method, ...]:
    """Data-level methods by the names `qsft curate` knows, separated by spaces or commas."""
    known = {str(method.curate): method for method in DATA_LEVEL}
    names = dict.fromkeys(name for word in words for name in word.split(",") if name)
    for name in names:
        if name not in known:
            raise ValueError(
                f"--methods {name!r} is not known. Choose of {', '.join(known)} (self_distill needs a base that has "
                "read documents long enough for a solution and its rewriting; the demo's has not)."
            )
    return tuple(known[name] for name in names)


def parse_methods(words: list[str]) -> tuple[Method, ...]:
    """Methods as the command line writes them: `sft`, `target:eta=0.2`, `kd:temperature=0.5,lr=1e-3`."""
    methods = tuple(map(_parse, words))
    repeated = {method.label for method in methods if methods.count(method) > 1}
    if repeated:
        raise ValueError(f"--targets names {', '.join(repeated)} twice. Name each once.")
    return methods


def _parse(word: str) -> Method:
    row, _, rest = word.partition(":")
    given = dict(_assignment(word, part) for part in rest.split(",") if part)
    rate = given.pop(RATE, CALM.get(row))
    method = Method(word, row, given, float(rate) if rate is not None else None)
    same = (known for known in METHODS if known.target == method.target and known.learning_rate == rate)
    return next(same, method)


def _assignment(word: str, part: str) -> tuple[str, Any]:
    import yaml

    key, equals, value = part.partition("=")
    if not equals or not value:
        raise ValueError(f"--targets {word!r}: {part!r} is not key=value. Write for example target:eta=0.2.")
    try:
        return key, float(value)
    except ValueError:
        return key, yaml.safe_load(value)
