"""What a run of the demo found, over one seed or several: as numbers, and in sentences computed from them."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

import qsft
from qsft.demo.foundation import BASE_CRITERION, teacher_criterion
from qsft.demo.measure import Knowledge, Measurement
from qsft.demo.scenario import Method, Scenario
from qsft.demo.world import ERRORS
from qsft.evals.stats import Estimate, paired_difference, standard_error
from qsft.page import static

BASE, TEACHER, TOKENS = "base", "teacher", "page of tokens"
TIE = 3.0  # points: what a seed more or less may change
CLEAN = 0.05  # slips per step below which demonstrations count as clean
LIMITS = (
    "This is a model of half a million parameters on facts it can memorise: it shows the mechanism and is no evidence "
    "for benchmarks."
)
QUICK = "This was a smoke test of a few steps: nothing was learnt, and the figures above mean nothing."


@dataclass(frozen=True)
class SeedResult:
    """One seed: measurements, knowledge and places by model, theory by method, a demonstration token by token."""

    scenario: Scenario
    models: dict[str, Measurement]
    knows: dict[str, Knowledge]
    closed_form: dict[str, dict[str, Knowledge | None]]  # method → "closed form" and "measured"
    demonstration: dict[str, Any]
    places: dict[str, str]
    seconds: dict[str, float]


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

    @property
    def scenario(self) -> Scenario:
        return self.seeds[0].scenario

    @property
    def lines(self) -> list[Line]:
        """Base, teacher, then the methods as they were asked for."""
        return [self.line(label) for label in (BASE, TEACHER, *(method.label for method in self.methods))]

    @property
    def hero(self) -> str | None:
        """The Target-SFT among the methods, the best one if there are several."""
        candidates = [method.label for method in self.methods if method.row == "target_sft"]
        return max(candidates, key=lambda label: self.line(label).average, default=None)

    def line(self, label: str) -> Line:
        models = [seed.models[label] for seed in self.seeds]
        by_seed = [model.average for model in models]
        spread = standard_error(np.array(by_seed)) if len(models) > 1 else models[0].standard_error
        greedy, passed = (fmean(getattr(model, name) for model in models) for name in ("greedy", "pass_at_n"))
        errors = {kind: fmean(model.errors[kind] for model in models) for kind in ERRORS}
        return Line(label, fmean(by_seed), spread, greedy, passed, errors, by_seed)

    def gain(self, label: str, over: str) -> Estimate:
        """How many points `label` is above `over`, paired by problem, over all seeds."""
        a, b = (np.concatenate([seed.models[name].scores for seed in self.seeds]) for name in (over, label))
        return paired_difference(100 * a, 100 * b)

    def record(self) -> dict[str, Any]:
        return {
            "qsft": qsft.__version__,
            "settings": asdict(replace(self.scenario, seed=0)),
            "methods": [asdict(method) for method in self.methods],
            "table": [asdict(line) for line in self.lines],
            "findings": findings(self),
            "seeds": [{"seed": seed.scenario.seed, **asdict(seed)} for seed in self.seeds],
        }


def findings(results: Results) -> list[str]:
    """One sentence or two per finding, the most important first: where Target-SFT wins, ties and loses."""
    if results.scenario.quick:
        return [QUICK]
    return [*_about_target_sft(results), *_about_the_rest(results), LIMITS]


def ordering(results: Results) -> str:
    lines = sorted(results.lines[2:], key=lambda line: -line.average)
    return " > ".join(f"{line.label} {line.average:.1f}" for line in lines)


def committed_seeds() -> dict[str, Any]:
    """`seeds` and `averages` (by label) of the run that the README's figures are from; `command` makes them again."""
    found: dict[str, Any] = json.loads(static("qsft.demo", "seeds.json"))
    return found


def _about_target_sft(results: Results) -> Iterator[str]:
    hero, rivals = results.hero, [m for m in results.methods if m.row != "target_sft" and not m.control]
    if hero is None or not rivals:
        yield f"First to last: {ordering(results)}."
        return
    best, said = max(rivals, key=lambda method: results.line(method.label).average), ""
    for rival in (best, *(m for m in rivals if m.row == "sft" and m is not best)):
        known, (sentence, said) = said, _against(results, hero, rival)
        yield sentence + (said if said != known else "")
    for control in (m for m in results.methods if m.control):
        yield "Control: " + _against(results, hero, control)[0]


def _against(results: Results, hero: str, rival: Method) -> tuple[str, str]:
    """Who wins, and the reason where the world gives one: a teacher that is wrong, demonstrations that are clean."""
    other, scenario, gain = rival.label, results.scenario, results.gain(hero, rival.label)
    mean, low, high = (f"{round(value, 1) + 0.0:+.1f}" for value in (gain.mean, gain.low, gain.high))  # no -0.0
    a, b = results.line(hero).average, results.line(other).average
    figures = f"{a:.1f} % against {b:.1f} %, difference {mean} points (95 % from {low} to {high})."
    won, why = f"{hero} {'beats' if gain.mean > 0 else 'loses to'} {other}", ""
    if abs(gain.mean) <= TIE:
        won = f"{hero} and {other} tie within {TIE:g} points"
        if rival.row == "sft" and not rival.curate and scenario.noise < CLEAN:
            why = " With demonstrations this clean there is nothing to filter: plain SFT is enough."
    elif gain.mean < 0 and scenario.teacher != "right" and "teacher" not in rival.target.needs:
        why = " The teacher is sure of wrong products, and Target-SFT follows it; who reads no teacher is not misled."
    return f"{won}: {figures}", why


def _about_the_rest(results: Results) -> Iterator[str]:
    """What goes wrong first, whether sampling separates the methods, which seeds to mind, what other seeds gave."""
    worst = [(line, max(line.errors, key=lambda kind: line.errors[kind])) for line in results.lines[2:]]
    said = ", ".join(f"{line.label} in {kind} ({line.errors[kind]:.1f} %)" for line, kind in worst)
    yield f"Where samples go wrong first, most often: {said}."
    lines = [results.line(method.label) for method in results.methods if not method.control]
    good = [line for line in lines if line.greedy >= max(line.greedy for line in lines) - TIE]
    ranked = sorted(good, key=lambda line: line.average)
    if ranked and ranked[-1].average - ranked[0].average > TIE:
        worse, *_, best = ranked
        names = " and ".join([", ".join(line.label for line in good[:-1]), good[-1].label])
        yield (
            f"At temperature 0 {names} tie within {TIE:g} points ({worse.label} {worse.greedy:.1f} %, "
            f"{best.label} {best.greedy:.1f} %): what separates them is sampling."
        )
    for seed in results.seeds:
        base, teacher = seed.knows[BASE], seed.knows[TEACHER]
        if not (BASE_CRITERION.met(base) and teacher_criterion(seed.scenario.teacher).met(teacher)):
            yield f"Mind seed {seed.scenario.seed}: its base or teacher does not know what it should, see above."
    known = committed_seeds()
    found: dict[str, list[float]] = known["averages"]
    labels = [method.label for method in results.methods if method.label in found]
    if results.scenario == Scenario() and len(results.seeds) == 1 < len(known["seeds"]) and labels:
        each = (f"{one} {fmean(found[one]):.1f} ({min(found[one]):.1f}–{max(found[one]):.1f})" for one in labels)
        yield f"This is one seed. Seeds {', '.join(map(str, known['seeds']))} gave: {', '.join(each)}."
