"""What a run of the demo found, over one seed or several, and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

import qsft
from qsft.demo.closed_form import Comparison
from qsft.demo.measure import Measurement
from qsft.demo.methods import Method
from qsft.demo.reading import ERRORS
from qsft.demo.settings import Settings
from qsft.demo.xray import Demonstration
from qsft.evals.stats import Estimate, paired_difference, standard_error

BASE, TEACHER = "base", "teacher"


@dataclass(frozen=True)
class SeedResult:
    """One seed: every model's measurement, theory beside it, one demonstration, where the models are."""

    settings: Settings
    models: Mapping[str, Measurement]
    closed_form: Mapping[str, Comparison]
    demonstration: Demonstration
    places: Mapping[str, str]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Line:
    """One line of the table: means over seeds; ± is over problems with one seed, over seeds with several."""

    label: str
    average: float
    standard_error: float
    greedy: float
    pass_at_n: float
    errors: dict[str, float]


@dataclass(frozen=True)
class Results:
    """All seeds of one run."""

    methods: tuple[Method, ...]
    seeds: tuple[SeedResult, ...]
    quick: bool = False

    @property
    def settings(self) -> Settings:
        """What all seeds share."""
        return self.seeds[0].settings

    @property
    def labels(self) -> list[str]:
        """Base, teacher, then the methods as they were asked for."""
        return [BASE, TEACHER, *(method.label for method in self.methods)]

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
            "settings": asdict(replace(self.settings, seed=0)) | {"quick": self.quick},
            "methods": [asdict(method) for method in self.methods],
            "table": [asdict(self.line(label)) for label in self.labels],
            "findings": findings,
            "seeds": [_seed_record(seed) for seed in self.seeds],
        }


def _seed_record(seed: SeedResult) -> dict[str, Any]:
    return {
        "seed": seed.settings.seed,
        "models": {label: {**asdict(m), "scores": m.scores.tolist()} for label, m in seed.models.items()},
        "closed_form": {label: dict(comparison) for label, comparison in seed.closed_form.items()},
        "demonstration": asdict(seed.demonstration),
        "places": dict(seed.places),
        "seconds": dict(seed.seconds),
    }
