"""The methods the demo compares: rows of the table of targets, each with a name for people, and data-level methods,
which turn the noisy demonstrations into others with the base's help."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from datasets import Dataset, load_from_disk

from qsft.curate.catalogue import Options
from qsft.curate.curation import Material, curate
from qsft.data.sources import DataSettings
from qsft.demo.measure import LONGEST
from qsft.demo.scenario import Phases, Scenario, load
from qsft.demo.world import ClockProblem, make_tokenizer
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


def parse_methods(words: list[str]) -> tuple[Method, ...]:
    """Methods as the command line writes them: `sft`, `target:eta=0.2`, `kd:temperature=0.5,lr=1e-3`."""
    methods = tuple(map(_parse, words))
    repeated = [label for label, count in Counter(method.label for method in methods).items() if count > 1]
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

    key, _, value = part.partition("=")
    if not value:
        raise ValueError(f"--targets {word!r}: {part!r} is not key=value. Write for example target:eta=0.2.")
    try:
        return key, float(value)
    except ValueError:
        return key, yaml.safe_load(value)


# ---- data-level methods ----

DATA_LEVEL = (
    Method("RFT", "sft", curate="rft"),
    Method("STaR", "sft", curate="star"),
    Method("GRAPE", "sft", curate="grape"),
    # Only its critical tokens are trained: at the others' learning rate everything between them is forgotten.
    Method("CFT", "cft", learning_rate=2e-4, curate="critical"),
)
SETTINGS: dict[str, dict[str, Any]] = {
    "rft": {"n": 4, "max_new_tokens": LONGEST},
    "star": {"hint": "{question} the clock knows {gold}", "max_new_tokens": LONGEST},
    "grape": {"columns": "others"},
    "critical": {"alternatives": 2, "max_new_tokens": LONGEST},
}
OPTIONS = Options(gold="qsft.demo.world:answer", verifier="qsft.demo.world:verify", fresh=True)
OTHERS = 3  # further demonstrators that GRAPE chooses from
ATTEMPTS = {"star": 2}  # at most: the second, with the hint, is for failures
MOST = {"critical": 512}  # problems: it tries every token, so it costs most


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


def curated_rows(scenario: Scenario, method: Method, data: Dataset, base: Path, out: Path, phases: Phases) -> Dataset:
    """As many documents as the demonstrations are, drawn from what a method makes of them: all train equally long."""
    name = str(method.curate)
    rows = data.select(range(min(len(data), MOST.get(name, len(data)))))
    rows = rows.add_column("others", other_demonstrations(rows, scenario)) if name == "grape" else rows
    responses = len(rows) * SETTINGS[name].get("n", 1) * ATTEMPTS.get(name, 1)
    material = Material(rows, DataSettings(), load(base), make_tokenizer())
    with phases.phase(f"curate by {method.label}", responses, "responses") as progress:
        curate(name, SETTINGS[name], material, out, OPTIONS, watch=lambda record: progress.advance())
    made = load_from_disk(str(out)).shuffle(seed=scenario.seed)
    made = made.select_columns([name for name in ("input_ids", "labels", "critical") if name in made.column_names])
    return made.select([at % len(made) for at in range(len(data))])


def other_demonstrations(rows: Dataset, scenario: Scenario) -> list[list[str]]:
    """Further solutions to the same problems, by demonstrators who slip as often, without <eos>."""
    random, problems = Random(f"others {scenario.seed}"), map(ClockProblem.of, rows["input_ids"])
    write = scenario.demonstrator.solution
    return [[" ".join(write(problem, random)[:-1]) for _ in range(OTHERS)] for problem in problems]
