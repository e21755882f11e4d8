"""The pool of grading processes: limits, failures, replacement, and that equal answers are graded once."""

import os
import signal
from dataclasses import asdict

import psutil
import pytest
from sympy.core import random as sympy_random

from qsft.evals.grading.grade import Grade
from qsft.evals.grading.pool import Judges
from qsft.evals.grading.worker import OutOfTime, grade_case, grade_in_time

BOX = r"We compute and find \boxed{%s}."


@pytest.fixture(scope="module")
def hasty():
    """One judge that gives an answer a second."""
    with Judges(1, time_limit=1) as judges:
        yield judges


def test_garbage_is_wrong_quickly_and_the_judge_survives(hasty):
    garbage = r"\boxed{" + r"(]{\frac \sqrt[ " * 6000
    assert not hasty.submit(garbage, "5").result().correct
    assert not hasty.submit("(]{ \\frac " * 10000, "5").result().correct
    assert hasty.submit(BOX % "5", "5").result().correct


@pytest.mark.parametrize("hang", ["9^{9^{9^{9^{9}}}}", "(((10!)!)!)!", r"\sum_{n=1}^{10^{30}} \frac{1}{n!+\sin n}"])
def test_an_expression_that_would_hang_sympy_is_cut_off(hang, hasty):
    graded = hasty.submit(BOX % hang, "7").result(timeout=60)
    assert graded.timed_out
    assert not graded.correct
    number = str(len(hang))
    assert hasty.submit(BOX % number, number).result().correct


def test_a_judge_that_no_longer_answers_is_replaced(hasty, monkeypatch):
    assert hasty.submit(BOX % "77", "77").result().correct
    monkeypatch.setattr("qsft.evals.grading.pool.PATIENCE", 1.0)
    os.kill(hasty._workers[0].process.pid, signal.SIGSTOP)
    assert hasty.submit(BOX % "88", "88").result().timed_out
    monkeypatch.undo()
    assert hasty.submit(BOX % "99", "99").result().correct


def test_grading_is_deterministic(monkeypatch, hasty):
    monkeypatch.setattr(
        "qsft.evals.grading.math_answers.grade_math", lambda **_: Grade(False, answer=str(sympy_random.random()))
    )
    case = {"prediction": "", "gold": "2"}
    assert grade_case(case) == grade_case(case)
    assert hasty.submit(BOX % "2", "2").result().correct
    assert psutil.Process(hasty._workers[0].process.pid).environ()["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError])
def test_any_failure_of_the_grader_is_a_wrong_answer_and_named(error, monkeypatch):
    def fail(prediction, gold):
        raise error("why")

    monkeypatch.setattr("qsft.evals.grading.math_answers.grade_math", fail)
    case = {"prediction": BOX % "2", "gold": "2"}
    assert grade_in_time(case, 5) == asdict(Grade(False, failure=f"{error.__name__}: why"))


def test_a_decided_grade_outlives_a_writing_that_takes_too_long(monkeypatch):
    def forever(answer):
        raise OutOfTime

    monkeypatch.setattr("qsft.evals.grading.math_answers.canonical", forever)
    graded = grade_in_time({"prediction": BOX % "x + 1", "gold": "3"}, 5)
    assert (graded["correct"], graded["timed_out"], graded["answer"]) == (False, False, "x+1")
    monkeypatch.setattr("qsft.evals.grading.expressions.parse", forever)
    hard = r"9^{9^{9^{9^{9}}}}"
    graded = grade_in_time({"answer": hard, "gold": hard}, 5)
    assert (graded["correct"], graded["timed_out"]) == (True, False)


def test_equal_answers_are_graded_once_and_judges_follow_the_affinity(judges):
    assert judges._threads._max_workers == min(16, len(os.sched_getaffinity(0)))
    futures = [judges.submit(f"sample {i}: " + BOX % "7", "7") for i in range(16)]
    assert len({id(future) for future in futures}) == 1
    assert futures[0].result().correct
    assert judges.submit(BOX % "7", "8") is not futures[0]


def test_judges_grade_a_thousand_ordinary_answers(judges):
    answers = [BOX % f"\\frac{{{i}}}{{{i % 7 + 2}}}" for i in range(1000)]
    golds = [f"{i}/{i % 7 + 2}" if i % 3 else str(i + 1) for i in range(1000)]
    graded = [future.result() for future in [judges.submit(a, g) for a, g in zip(answers, golds, strict=True)]]
    assert [bool(one) for one in graded[:7]] == [False, True, True, False, True, True, False]
    assert all(one.answer for one in graded)
