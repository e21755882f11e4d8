"""The findings and the report follow the numbers: Target-SFT wins, ties or loses."""

from dataclasses import replace

import numpy as np
import pytest

from qsft.demo.findings import LIMITS, SMOKE_TEST, findings
from qsft.demo.measure import Measurement
from qsft.demo.methods import METHODS
from qsft.demo.report import make_report
from qsft.demo.results import BASE, TEACHER, TEACHER_CACHE, TOKENS_PAGE, Results, SeedResult
from qsft.demo.scenario import Scenario
from qsft.demo.task import ADDING, ERRORS, MULTIPLYING

PAPER = {"SFT": 45.0, "DFT": 83.0, "KD 0.8": 76.0, "KD 1.0": 85.0, "Target-SFT": 98.7}
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
    paths = dict.fromkeys((BASE, TOKENS_PAGE, TEACHER_CACHE), "somewhere")
    one = SeedResult(Scenario(**scenario), models, knows, theory, {"question": "", "tokens": []}, paths, {})
    return Results(METHODS, tuple(replace(one, scenario=replace(one.scenario, seed=i)) for i in range(seeds)))


def test_a_win_over_the_best_method_comes_first_and_controls_last():
    first, sft, control, *_ = findings(make_results(PAPER))
    assert first.startswith("Target-SFT beats KD 1.0: 98.7 % against 85.0 %, difference +13.7 points")
    assert sft.startswith("Target-SFT beats SFT:")
    assert control.startswith("Control: Target-SFT and KD sharpened tie")


def test_clean_demonstrations_are_a_tie_with_sft():
    text = " ".join(findings(make_results({**PAPER, "SFT": 98.2}, noise=0.0)))
    assert "Target-SFT and SFT tie within 3 points" in text
    assert "plain SFT is enough" in text
    assert "beats SFT:" not in text


def test_a_loss_with_a_wrong_teacher_names_the_reason():
    averages = {**PAPER, "KD 1.0": 34.0, "Target-SFT": 36.0}
    first, *_ = findings(make_results(averages, teacher="wrong"))
    assert first.startswith("Target-SFT loses to DFT")
    assert "sure of wrong products" in first


def test_a_wrong_teacher_is_not_named_as_the_reason_of_a_win():
    assert "wrong products" not in " ".join(findings(make_results(PAPER, teacher="wrong")))


@pytest.mark.parametrize(("sft", "ties"), [(99.0, True), (80.0, False)])
def test_greedy_ties_are_reported_only_where_they_occur(sft, ties):
    greedy = {"SFT": sft, "DFT": 80.0, "KD 0.8": 80.0, "KD 1.0": 80.0, "KD sharpened": 80.0}
    text = " ".join(findings(make_results(PAPER, greedy)))
    assert ("they differ in sampling" in text) == ties


def test_a_control_alone_is_reported_too():
    alone = replace(make_results(PAPER), methods=tuple(method for method in METHODS if method.label == "Beyond log"))
    assert findings(alone)[0] == "First to last: Beyond log 95.0."
    assert make_report({"": alone}).record["table"][-1]["label"] == "Beyond log"


def test_a_seed_whose_base_lacks_its_facts_is_named():
    poor = {**KNOWN, BASE: {ADDING: 0.6, MULTIPLYING: 0.1}}
    assert "Caution, seed 0" in " ".join(findings(make_results(PAPER, knows=poor)))
    assert "Caution, seed" not in " ".join(findings(make_results(PAPER)))


def test_a_single_seed_is_shown_beside_the_figures_of_other_seeds(monkeypatch):
    known = {"seeds": [0, 1, 2], "averages": {"SFT": [44.0, 45.0, 46.0], "Target-SFT": [97.0, 98.0, 99.0]}}
    monkeypatch.setattr("qsft.demo.findings.committed_seeds", lambda: known)
    text = " ".join(findings(make_results(PAPER)))
    assert "Seeds 0, 1, 2 gave: SFT 45.0 (44.0–46.0), Target-SFT 98.0 (97.0–99.0)." in text
    for other in (make_results(PAPER, seeds=3), make_results(PAPER, noise=0.0)):
        assert "This is one seed" not in " ".join(findings(other))


def test_several_scenarios_share_one_table():
    scenarios = {"right": make_results(PAPER, seeds=2), "wrong": make_results({**PAPER, "Target-SFT": 36.0}, seeds=2)}
    report = make_report(scenarios)
    table = report.sheets[0]
    assert table.columns == ("model", "right", "wrong")
    assert table.rows[-1] == ("Target-SFT", "98.7 ± 0.0", "36.0 ± 0.0")
    *_, points, dots = table.chart.data
    assert (points.name, points.x[-1]) == ("wrong", 36.0)
    assert list(zip(dots.x, dots.y))[-2:] == [(36.0, "Target-SFT")] * 2
    assert "right: Target-SFT 98.7 > KD sharpened 98.0 > Beyond log 95.0 > KD 1.0 85.0" in " ".join(report.findings)
    assert "KD 0.8 76.0 > SFT 45.0 > Target-SFT 36.0." in " ".join(report.findings)
    assert list(report.record["scenarios"]) == ["right", "wrong"]


def test_limits_are_always_stated_and_a_smoke_test_claims_nothing():
    results = make_results(PAPER)
    assert findings(results)[-1] == LIMITS
    assert findings(make_results(PAPER, quick=True)) == [SMOKE_TEST]


def test_several_seeds_spread_over_seeds():
    results = make_results(PAPER, seeds=3)
    assert results.line("SFT").standard_error == pytest.approx(0.0)
    assert make_results(PAPER).line("SFT").standard_error == pytest.approx(0.3)


def test_every_seed_is_a_dot_on_the_page():
    bars, dots = make_report({"": make_results(PAPER, seeds=3)}).sheets[0].chart.data
    assert dots.name == "one seed"
    assert list(zip(dots.y, dots.x))[-3:] == [("Target-SFT", 98.7)] * 3
    assert len(dots.x) == 3 * len(bars.y)
    assert len(make_report({"": make_results(PAPER)}).sheets[0].chart.data) == 1
