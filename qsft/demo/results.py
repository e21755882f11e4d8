"""What a run of the demo found, over one seed or several, and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

import qsft
from qsft.demo.contexts import Comparison
from qsft.demo.demonstration import Demonstration
from qsft.demo.measure import Measurement
from qsft.demo.methods import Method
from qsft.demo.scenario import Scenario
from qsft.demo.solutions import ERRORS
from qsft.evals.stats import Estimate, paired_difference, standard_error

BASE, TEACHER, TOKENS = "base", "teacher", "page of tokens"


@dataclass(frozen=True)
class SeedResult:
    """One seed: every model's measurement, what base and teacher knew, theory, one demonstration, where models are."""

    scenario: Scenario
    models: Mapping[str, Measurement]
    knows: Mapping[str, Mapping[str, float]]
    closed_form: Mapping[str, Comparison]
    demonstration: Demonstration
    places: Mapping[str, str]
    seconds: Mapping[str, float]

    def record(self) -> dict[str, Any]:
        """The seed as JSON-able data."""
        return {
            "seed": self.scenario.seed,
            "models": {label: {**asdict(m), "scores": m.scores.tolist()} for label, m in self.models.items()},
            "knows": self.knows,
            "closed_form": {label: dict(comparison) for label, comparison in self.closed_form.items()},
            "demonstration": asdict(self.demonstration),
            "places": dict(self.places),
            "seconds": dict(self.seconds),
        }


@dataclass(frozen=True)
class Line:
    """One line of the table: means over seeds; ± is over problems with one seed, over seeds with several."""

    label: str
    average: float
    standard_error: float
    greedy: float
    pass_at_n: float
    errors: dict[str, float]
    by_seed: list[float]


@dataclass(frozen=True)
class Results:
    """All seeds of one run."""

    methods: tuple[Method, ...]
    seeds: tuple[SeedResult, ...]
    quick: bool = False

    @property
    def scenario(self) -> Scenario:
        """What all seeds share."""
        return self.seeds[0].scenario

    @property
    def lines(self) -> list[Line]:
        """Base, teacher, then the methods as they were asked for."""
        return [self.line(label) for label in (BASE, TEACHER, *(method.label for method in self.methods))]

    @property
    def hero(self) -> Method | None:
        """The Target-SFT among the methods, the best one if there are several."""
        candidates = [method for method in self.methods if method.row == "target"]
        return max(candidates, key=lambda method: self.line(method.label).average, default=None)

    def line(self, label: str) -> Line:
        """A model's line of the table."""
        models = [seed.models[label] for seed in self.seeds]
        averages = np.array([model.average for model in models])
        return Line(
            label=label,
            average=float(averages.mean()),
            standard_error=standard_error(averages) if len(models) > 1 else models[0].standard_error,
            greedy=fmean(model.greedy for model in models),
            pass_at_n=fmean(model.pass_at_n for model in models),
            errors={kind: fmean(model.errors[kind] for model in models) for kind in ERRORS},
            by_seed=averages.tolist(),
        )

    def gain(self, label: str, over: str) -> Estimate:
        """How many points `label` is above `over`, paired by problem, over all seeds."""
        a, b = (np.concatenate([seed.models[name].scores for seed in self.seeds]) for name in (over, label))
        points = paired_difference(a, b)
        return Estimate(100 * points.mean, 100 * points.se, 100 * points.low, 100 * points.high)

    def record(self, findings: list[str]) -> dict[str, Any]:
        """The results as JSON-able data."""
        return {
            "qsft": qsft.__version__,
            "settings": asdict(replace(self.scenario, seed=0)) | {"quick": self.quick},
            "methods": [asdict(method) for method in self.methods],
            "table": [asdict(line) for line in self.lines],
            "findings": findings,
            "seeds": [seed.record() for seed in self.seeds],
        }
