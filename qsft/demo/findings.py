"""What the results say, in sentences computed from them: where Target-SFT wins, ties and loses."""

import json
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from qsft.demo.foundation import base_suffices, teacher_suffices
from qsft.demo.methods import Method
from qsft.demo.results import BASE, TEACHER, Line, Results
from qsft.demo.scenario import Scenario
from qsft.page import static

TIE = 3.0  # points: what a seed more or less may change
CLEAN = 0.05  # slips per step below which demonstrations count as clean

LIMITS = (
    "This is a model of half a million parameters on facts it can memorise: it shows the mechanism and is no evidence "
    "for benchmarks."
)
QUICK = "This was a smoke test of a few steps: nothing was learnt, and the figures above mean nothing."


def findings(results: Results) -> list[str]:
    """One sentence or two per finding, the most important first."""
    if results.quick:
        return [QUICK]
    return [
        *_about_target_sft(results),
        _about_errors(results),
        *_about_greedy(results),
        *_about_the_world(results),
        *_about_other_seeds(results),
        LIMITS,
    ]


def _about_target_sft(results: Results) -> Iterator[str]:
    hero = results.hero
    rivals = [m for m in results.methods if m.row != "target" and not m.control]
    if hero is None or not rivals:
        first = max((results.line(method.label) for method in results.methods), key=lambda line: line.average)
        yield f"{first.label} is first with {first.average:.1f} %."
        return
    best = max(rivals, key=lambda method: results.line(method.label).average)
    reason = ""
    for rival in (best, *(m for m in rivals if m.row == "sft" and m is not best)):
        known, reason = reason, _why(results, hero, rival)
        yield _against(results, hero.label, rival.label) + (reason if reason != known else "")
    for control in (m for m in results.methods if m.control):
        yield "Control: " + _against(results, hero.label, control.label)


def _against(results: Results, ours: str, other: str) -> str:
    gain = results.gain(ours, other)
    a, b = results.line(ours).average, results.line(other).average
    spread = f"95 % from {_points(gain.low)} to {_points(gain.high)}"
    figures = f"{a:.1f} % against {b:.1f} %, difference {_points(gain.mean)} points ({spread})"
    if gain.mean > TIE:
        return f"{ours} beats {other}: {figures}."
    if gain.mean >= -TIE:
        return f"{ours} and {other} tie within {TIE:g} points: {figures}."
    return f"{ours} loses to {other}: {figures}."


def _why(results: Results, hero: Method, rival: Method) -> str:
    """The reason, where the world gives one: a teacher that is wrong, demonstrations that are clean."""
    gain = results.gain(hero.label, rival.label).mean
    if gain < -TIE and results.scenario.teacher != "right" and "teacher" not in rival.target.needs:
        return " The teacher is sure of wrong products, and Target-SFT follows it; who reads no teacher is not misled."
    if abs(gain) <= TIE and rival.row == "sft" and not rival.curate and results.scenario.noise < CLEAN:
        return " With demonstrations this clean there is nothing to filter: plain SFT is enough."
    return ""


def _about_errors(results: Results) -> str:
    """What each method gets wrong first, most often."""
    said = []
    for method in results.methods:
        errors = results.line(method.label).errors
        kind = max(errors, key=lambda one: errors[one])
        said.append(f"{method.label} in {kind} ({errors[kind]:.1f} %)")
    return f"Where samples go wrong first, most often: {', '.join(said)}."


def _about_greedy(results: Results) -> Iterator[str]:
    """Whether what separates the methods is how they sample."""
    lines = [results.line(method.label) for method in results.methods if not method.control]
    good = [line for line in lines if line.greedy >= max(line.greedy for line in lines) - TIE]
    worst = min(good, key=lambda line: line.average)
    best = max(good, key=lambda line: line.average)
    if best.average - worst.average > TIE:
        yield (
            f"At temperature 0 {_names(good)} tie within {TIE:g} points ({worst.label} {worst.greedy:.1f} %, "
            f"{best.label} {best.greedy:.1f} %): what separates them is sampling."
        )


def _about_the_world(results: Results) -> Iterator[str]:
    """Seeds whose base or teacher did not come to know what they should: their figures are about another world."""
    for seed in results.seeds:
        base, teacher = seed.knows[BASE], seed.knows[TEACHER]
        if not (base_suffices(base) and teacher_suffices(teacher, seed.scenario.teacher)):
            yield f"Mind seed {seed.scenario.seed}: its base or teacher does not know what it should, see above."


def _about_other_seeds(results: Results) -> Iterator[str]:
    """What the committed seeds of the demo gave, beside a single one of them."""
    known = committed_seeds()
    ordinary = results.scenario == Scenario() and len(results.seeds) == 1
    labels = [method.label for method in results.methods if method.label in known["averages"]]
    if ordinary and labels and len(known["seeds"]) > 1:
        said = ", ".join(f"{label} {_mean_and_range(known['averages'][label])}" for label in labels)
        yield f"This is one seed. Seeds {', '.join(map(str, known['seeds']))} gave: {said}."


def committed_seeds() -> dict[str, Any]:
    """`seeds` and `averages` (by label) of the run that the README's figures are from; `command` makes them again."""
    found: dict[str, Any] = json.loads(static("qsft.demo", "seeds.json"))
    return found


def _mean_and_range(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def _points(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f}"  # + 0.0: no minus before a zero


def _names(lines: list[Line]) -> str:
    *most, last = [line.label for line in lines]
    return f"{', '.join(most)} and {last}" if most else last
