"""The sentences follow the numbers: the same code says wins, ties and loses."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qsft.demo.foundation import BASE_CRITERION, teacher_criterion
from qsft.demo.measure import Measurement
from qsft.demo.report import report_of
from qsft.demo.results import BASE, LIMITS, QUICK, TEACHER, TOKENS, Results, SeedResult, committed_seeds, findings
from qsft.demo.scenario import METHODS, Scenario
from qsft.demo.world import ADDING, ERRORS, MULTIPLYING

PAPER = {"SFT": 45.0, "SFT(p)": 83.0, "KD 0.8": 76.0, "KD 1.0": 85.0, "Target-SFT": 98.7}
CONTROLS = {"KD sharpened": 98.0, "Beyond log": 95.0}


def measurement(average, greedy=100.0):
    scores = np.clip(average / 100 + np.linspace(-0.01, 0.01, 64), 0, 1).tolist()
    return Measurement(average, 0.3, greedy, 100.0, dict.fromkeys(ERRORS, 0.0), scores)


KNOWN = {BASE: {ADDING: 1.0, MULTIPLYING: 0.8}, TEACHER: {ADDING: 1.0, MULTIPLYING: 1.0}}


def make_results(averages, greedy=None, seeds=1, knows=KNOWN, **scenario):
    models = {
        label: measurement({**CONTROLS, **averages}.get(label, 30.0), (greedy or {}).get(label, 100.0))
        for label in (BASE, TEACHER, *(method.label for method in METHODS))
    }
    theory = {method.label: {"closed form": None, "measured": {ADDING: 0.9}} for method in METHODS}
    places = dict.fromkeys((BASE, TOKENS, "teacher cache"), "somewhere")
    one = SeedResult(Scenario(**scenario), models, knows, theory, {"question": "", "tokens": []}, places, {})
    return Results(METHODS, tuple(replace(one, scenario=replace(one.scenario, seed=i)) for i in range(seeds)))


def test_a_win_is_called_a_win_and_the_control_is_not_a_rival():
    first, sft, control, *_ = findings(make_results(PAPER))
    assert first.startswith("Target-SFT beats KD 1.0: 98.7 % against 85.0 %, difference +13.7 points")
    assert sft.startswith("Target-SFT beats SFT:")
    assert control.startswith("Control: Target-SFT and KD sharpened tie")


def test_clean_demonstrations_are_a_tie_with_sft():
    said = " ".join(findings(make_results({**PAPER, "SFT": 98.2}, noise=0.0)))
    assert "Target-SFT and SFT tie within 3 points" in said
    assert "plain SFT is enough" in said
    assert "beats SFT:" not in said


def test_a_wrong_teacher_makes_it_lose_and_the_demo_says_why():
    averages = {**PAPER, "KD 1.0": 34.0, "Target-SFT": 36.0}
    first, *_ = findings(make_results(averages, teacher="wrong"))
    assert first.startswith("Target-SFT loses to SFT(p)")
    assert "sure of wrong products" in first


def test_a_wrong_teacher_that_does_no_harm_is_not_blamed():
    assert "wrong products" not in " ".join(findings(make_results(PAPER, teacher="wrong")))


@pytest.mark.parametrize(("sft", "ties"), [(99.0, True), (80.0, False)])
def test_greedy_ties_are_said_only_when_they_are_there(sft, ties):
    greedy = {"SFT": sft, "SFT(p)": 80.0, "KD 0.8": 80.0, "KD 1.0": 80.0, "KD sharpened": 80.0}
    said = " ".join(findings(make_results(PAPER, greedy)))
    assert ("what separates them is sampling" in said) == ties


def test_a_control_alone_is_reported_too():
    alone = replace(make_results(PAPER), methods=tuple(method for method in METHODS if method.label == "Beyond log"))
    assert findings(alone)[0] == "First to last: Beyond log 95.0."
    assert report_of({"": alone}).record["table"][-1]["label"] == "Beyond log"


def test_a_seed_whose_base_lacks_its_facts_is_named():
    poor = {**KNOWN, BASE: {ADDING: 0.6, MULTIPLYING: 0.1}}
    assert "Mind seed 0" in " ".join(findings(make_results(PAPER, knows=poor)))
    assert "Mind seed" not in " ".join(findings(make_results(PAPER)))


def test_a_single_seed_says_what_other_seeds_gave(monkeypatch):
    known = {"seeds": [0, 1, 2], "averages": {"SFT": [44.0, 45.0, 46.0], "Target-SFT": [97.0, 98.0, 99.0]}}
    monkeypatch.setattr("qsft.demo.results.committed_seeds", lambda: known)
    said = " ".join(findings(make_results(PAPER)))
    assert "Seeds 0, 1, 2 gave: SFT 45.0 (44.0–46.0), Target-SFT 98.0 (97.0–99.0)." in said
    for other in (make_results(PAPER, seeds=3), make_results(PAPER, noise=0.0)):
        assert "This is one seed" not in " ".join(findings(other))


def test_the_readme_shows_the_committed_figures_with_their_spread():
    known, readme = committed_seeds()["averages"], (Path(__file__).parents[2] / "README.md").read_text()
    (row,) = (line.replace("*", "") for line in readme.splitlines() if "static/seeds.json" in line)
    for label in (method.label for method in METHODS):
        spread = np.std(known[label], ddof=1) / len(known[label]) ** 0.5
        assert f" {np.mean(known[label]):.1f} ± {spread:.1f}" in row, label
    (control,) = (line for line in readme.splitlines() if "is a strong control" in line)
    for label in ("KD sharpened", "Beyond log", "Target-SFT"):
        assert f" {np.mean(known[label]):.1f}" in control, label


def test_every_committed_seed_met_the_criterion_and_had_target_sft_first():
    committed = committed_seeds()
    assert len(committed["seeds"]) >= 3
    for at, knows in enumerate(committed["knows"]):
        assert BASE_CRITERION.met(knows[BASE])
        assert teacher_criterion("right").met(knows[TEACHER])
        ranked = [method.label for method in METHODS if not method.control]
        assert max(ranked, key=lambda label: committed["averages"][label][at]) == "Target-SFT"


def test_several_worlds_are_one_table_with_the_order_of_the_methods_in_each():
    worlds = {"right": make_results(PAPER, seeds=2), "wrong": make_results({**PAPER, "Target-SFT": 36.0}, seeds=2)}
    report = report_of(worlds)
    table = report.sheets[0]
    assert table.columns == ("model", "right", "wrong")
    assert table.rows[-1] == ("Target-SFT", "98.7 ± 0.0", "36.0 ± 0.0")
    *_, points, dots = table.chart.data
    assert (points.name, points.x[-1]) == ("wrong", 36.0)
    assert list(zip(dots.x, dots.y))[-2:] == [(36.0, "Target-SFT")] * 2
    assert "right: Target-SFT 98.7 > KD sharpened 98.0 > Beyond log 95.0 > KD 1.0 85.0" in " ".join(report.findings)
    assert "KD 0.8 76.0 > SFT 45.0 > Target-SFT 36.0." in " ".join(report.findings)
    assert list(report.record["worlds"]) == ["right", "wrong"]


def test_limits_are_always_stated_and_a_smoke_test_claims_nothing():
    results = make_results(PAPER)
    assert findings(results)[-1] == LIMITS
    assert findings(make_results(PAPER, quick=True)) == [QUICK]


def test_several_seeds_spread_over_seeds():
    results = make_results(PAPER, seeds=3)
    assert results.line("SFT").standard_error == pytest.approx(0.0)
    assert make_results(PAPER).line("SFT").standard_error == pytest.approx(0.3)


def test_every_seed_is_a_dot_on_the_page():
    bars, dots = report_of({"": make_results(PAPER, seeds=3)}).sheets[0].chart.data
    assert dots.name == "one seed"
    assert list(zip(dots.y, dots.x))[-3:] == [("Target-SFT", 98.7)] * 3
    assert len(dots.x) == 3 * len(bars.y)
    assert len(report_of({"": make_results(PAPER)}).sheets[0].chart.data) == 1
