"""The numbers of a run of the demo, over one seed or several."""

from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

import qsft
from qsft.demo.knowledge import Knowledge
from qsft.demo.measure import Measurement
from qsft.demo.methods import Method
from qsft.demo.scenario import Scenario
from qsft.demo.task import ERRORS
from qsft.evals.stats import Estimate, paired_difference, standard_error
from qsft.run_directory import BASE

# Labels of what is not a method, beside BASE.
TEACHER = "teacher"
TEACHER_CACHE = "teacher cache"
TOKENS_PAGE = "page of tokens"


@dataclass(frozen=True)
class SeedResult:
    """The results of one seed.

    Args:
        models: accuracy by label of a model.
        knows: shares of known facts by label of a model.
        closed_form: method → "closed form" and "measured": how likely the right result of a step is.
        demonstration: one demonstration token by token, see `experiment.read_demonstration`.
        paths: where models, cache and page are, by label.
        seconds: by phase.
    """

    scenario: Scenario
    models: dict[str, Measurement]
    knows: dict[str, Knowledge]
    closed_form: dict[str, dict[str, Knowledge | None]]
    demonstration: dict[str, Any]
    paths: dict[str, str]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Line:
    """One line of the accuracy table: means over seeds.

    Args:
        standard_error: over problems with one seed, over seeds with several.
    """

    label: str
    average: float
    standard_error: float
    greedy: float
    pass_at_n: float
    errors: dict[str, float]
    by_seed: list[float]


@dataclass(frozen=True)
class Results:
    """All seeds of one scenario."""

    methods: tuple[Method, ...]
    seeds: tuple[SeedResult, ...]

    @property
    def scenario(self) -> Scenario:
        return self.seeds[0].scenario

    @property
    def method_lines(self) -> list[Line]:
        """The lines of the methods, in the order in which they were given."""
        return [self.line(method.label) for method in self.methods]

    @property
    def lines(self) -> list[Line]:
        """Base, teacher, then the methods."""
        return [self.line(BASE), self.line(TEACHER), *self.method_lines]

    @property
    def target_sft_label(self) -> str | None:
        """The label of Target-SFT among the methods, of the best one if there are several; None without one."""
        candidates = [method.label for method in self.methods if method.target_name == "target_sft"]
        return max(candidates, key=lambda label: self.line(label).average, default=None)

    def line(self, label: str) -> Line:
        """Return the line of one model."""
        models = [seed.models[label] for seed in self.seeds]
        by_seed = [model.average for model in models]
        if len(models) > 1:
            spread = standard_error(np.array(by_seed))
        else:
            spread = models[0].standard_error
        return Line(
            label,
            average=fmean(by_seed),
            standard_error=spread,
            greedy=fmean(model.greedy for model in models),
            pass_at_n=fmean(model.pass_at_n for model in models),
            errors={kind: fmean(model.errors[kind] for model in models) for kind in ERRORS},
            by_seed=by_seed,
        )

    def gain(self, label: str, over: str) -> Estimate:
        """Return how many points `label` is above `over`, paired by problem, over all seeds."""
        baseline = np.concatenate([seed.models[over].scores for seed in self.seeds])
        scores = np.concatenate([seed.models[label].scores for seed in self.seeds])
        return paired_difference(100 * baseline, 100 * scores)

    def as_record(self) -> dict[str, Any]:
        """Return the results as JSON-able data."""
        return {
            "qsft": qsft.__version__,
            "settings": asdict(replace(self.scenario, seed=0)),
            "methods": [asdict(method) for method in self.methods],
            "table": [asdict(line) for line in self.lines],
            "seeds": [{"seed": seed.scenario.seed, **asdict(seed)} for seed in self.seeds],
        }
