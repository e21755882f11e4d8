"""The findings of a run of the demo as sentences, computed from its numbers: where Target-SFT wins, ties and loses."""

import json
from collections.abc import Iterator
from statistics import fmean
from typing import Any, NamedTuple

from qsft.demo.foundation import BASE_CRITERION, teacher_criterion
from qsft.demo.methods import Method
from qsft.demo.results import TEACHER, Results
from qsft.demo.scenario import Scenario
from qsft.page import static
from qsft.run_directory import BASE

TIE = 3.0  # points: smaller differences may change with the seed
CLEAN = 0.05  # probability of a slip below which demonstrations count as clean
LIMITS = (
    "This is a model of half a million parameters on facts that it can memorize. It shows the mechanism and is not "
    "evidence for benchmarks."
)
SMOKE_TEST = "This was a smoke test of a few steps: nothing was learned, and the figures above mean nothing."


def findings(results: Results) -> list[str]:
    """Return one or two sentences per finding, the most important first."""
    if results.scenario.quick:
        return [SMOKE_TEST]
    return [
        *_findings_on_target_sft(results),
        _most_frequent_errors(results),
        *_ties_at_temperature_zero(results),
        *_seeds_below_criterion(results),
        *_figures_of_other_seeds(results),
        LIMITS,
    ]


def ranking(results: Results) -> str:
    """Return the methods with their accuracy, the best first."""
    lines = sorted(results.method_lines, key=lambda line: -line.average)
    return " > ".join(f"{line.label} {line.average:.1f}" for line in lines)


def committed_seeds() -> dict[str, Any]:
    """Return `seeds`, `averages` and `standard_errors` (by label) of the run that the guide shows.

    `command` repeats it.
    """
    found: dict[str, Any] = json.loads(static("qsft.demo", "seeds.json"))
    return found


class _Comparison(NamedTuple):
    """Who wins with which figures, and the reason where the scenario gives one (else an empty text)."""

    result: str
    reason: str


def _findings_on_target_sft(results: Results) -> Iterator[str]:
    label = results.target_sft_label
    rivals = [method for method in results.methods if method.target_name != "target_sft" and not method.control]
    if label is None or not rivals:
        yield f"First to last: {ranking(results)}."
        return
    best = max(rivals, key=lambda method: results.line(method.label).average)
    others = [method for method in rivals if method.target_name == "sft" and method is not best]
    last_reason = ""
    for rival in (best, *others):
        comparison = _compare(results, label, rival)
        if comparison.reason and comparison.reason != last_reason:
            yield f"{comparison.result} {comparison.reason}"
        else:
            yield comparison.result
        last_reason = comparison.reason
    for method in results.methods:
        if method.control:
            yield f"Control: {_compare(results, label, method).result}"


def _compare(results: Results, label: str, rival: Method) -> _Comparison:
    scenario = results.scenario
    gain = results.gain(label, rival.label)
    own_average = results.line(label).average
    rival_average = results.line(rival.label).average
    figures = (
        f"{own_average:.1f} % against {rival_average:.1f} %, difference {_signed(gain.mean)} points "
        f"(95 % from {_signed(gain.low)} to {_signed(gain.high)})."
    )
    if abs(gain.mean) <= TIE:
        reason = ""
        if rival.target_name == "sft" and rival.curate is None and scenario.noise < CLEAN:
            reason = "With demonstrations this clean there is nothing to filter: plain SFT is enough."
        return _Comparison(f"{label} and {rival.label} tie within {TIE:g} points: {figures}", reason)
    if gain.mean > 0:
        return _Comparison(f"{label} beats {rival.label}: {figures}", "")
    reason = ""
    if scenario.teacher != "right" and not rival.reads_teacher:
        reason = (
            "The teacher is sure of wrong products, and Target-SFT follows it; methods without a teacher are not "
            "affected."
        )
    return _Comparison(f"{label} loses to {rival.label}: {figures}", reason)


def _signed(points: float) -> str:
    return f"{round(points, 1) + 0.0:+.1f}"  # adding 0.0 turns -0.0 into 0.0


def _most_frequent_errors(results: Results) -> str:
    parts = []
    for line in results.method_lines:
        kind = max(line.errors, key=lambda kind: line.errors[kind])
        parts.append(f"{line.label} in {kind} ({line.errors[kind]:.1f} %)")
    return f"Where samples go wrong first, most often: {', '.join(parts)}."


def _ties_at_temperature_zero(results: Results) -> Iterator[str]:
    """Yield a sentence if methods that differ in sampling tie in greedy decoding."""
    lines = [results.line(method.label) for method in results.methods if not method.control]
    if not lines:
        return
    best_greedy = max(line.greedy for line in lines)
    tied = [line for line in lines if line.greedy >= best_greedy - TIE]
    worst = min(tied, key=lambda line: line.average)
    best = max(tied, key=lambda line: line.average)
    if best.average - worst.average > TIE:
        names = ", ".join(line.label for line in tied[:-1]) + f" and {tied[-1].label}"
        yield (
            f"At temperature 0 {names} tie within {TIE:g} points ({worst.label} {worst.greedy:.1f} %, "
            f"{best.label} {best.greedy:.1f} %): they differ in sampling."
        )


def _seeds_below_criterion(results: Results) -> Iterator[str]:
    for seed in results.seeds:
        base_is_ready = BASE_CRITERION.met(seed.knows[BASE])
        teacher_is_ready = teacher_criterion(seed.scenario.teacher).met(seed.knows[TEACHER])
        if not (base_is_ready and teacher_is_ready):
            number = seed.scenario.seed
            yield f"Caution, seed {number}: its base or teacher does not meet its criterion, see the lines above."


def _figures_of_other_seeds(results: Results) -> Iterator[str]:
    """Yield the committed figures of several seeds, if this run is one seed of the same scenario."""
    if results.scenario != Scenario() or len(results.seeds) > 1:
        return
    committed = committed_seeds()
    averages: dict[str, list[float]] = committed["averages"]
    parts = []
    for method in results.methods:
        if method.label in averages:
            values = averages[method.label]
            parts.append(f"{method.label} {fmean(values):.1f} ({min(values):.1f}–{max(values):.1f})")
    if parts:
        seeds = ", ".join(str(seed) for seed in committed["seeds"])
        yield f"This is one seed. Seeds {seeds} gave: {', '.join(parts)}."
