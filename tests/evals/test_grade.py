"""The grader on hand-made answers: what counts as the same, what does not, and what must not hang."""

import os
import signal
import subprocess

import pytest
from sympy.core import random as sympy_random
from sympy.core.facts import InconsistentAssumptions

from qsft.evals.answers import _float
from qsft.evals.choice import by_box
from qsft.evals.grade import Grade, Judges, grade, to_record
from qsft.evals.judge import judge, judge_in_time

BOX = r"We compute and find \boxed{%s}."

SAME = [
    ("fraction", r"\frac{1}{2}", "0.5"),
    ("fraction, slash", "1/2", r"\dfrac12"),
    ("negative fraction", "-1/2", r"-\frac{1}{2}"),
    ("unit in the answer", "5", r"5\text{ cm}"),
    ("unit in the gold", r"10\text{ cm}", "10"),
    ("interval", "(1,2]", "(1, 2]"),
    ("set", r"\{1,2\}", r"\{2, 1\}"),
    ("set as list", "1,2", "2, 1"),
    ("set in words", "1,2", "1 and 2"),
    ("set of solutions", "1,2", r"x=1\text{ or }x=2"),
    ("set of tuples", "(1,2),(3,4)", "(3,4), (1,2)"),
    ("set of words", r"\text{red}, \text{blue}", "blue, red"),
    ("tuple", r"\left(3, \frac{\pi}{2}\right)", r"(3, \pi/2)"),
    ("matrix", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    ("percentage", r"25\%", "25"),
    ("percentage as fraction", r"25\%", "0.25"),
    ("e-notation, gold", "4.5e33", r"4.5 \times 10^{33}"),
    ("e-notation, answer", r"4.5 \times 10^{33}", "4.5e33"),
    ("e-notation, small", "1.0e-5", "0.00001"),
    ("text", r"\text{Evelyn}", "Evelyn"),
    ("text, case and spaces", "even function", r"\text{Even  function}"),
    ("thousands", "1000", "1,000"),
    ("degrees", "90", r"90^\circ"),
    ("polynomial", "x^2+2x+1", "(x+1)^2"),
    ("surd", r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    ("equation", "y=2x+3", "2x+3"),
    ("dirty gold", "$12$.", "12"),
    ("float gold", 27.0, "27"),
    ("gold list", ["3", "-3"], "-3, 3"),
    ("clock", "6:00", "6:00"),
]

DIFFERENT = [
    ("number", "12", "13"),
    ("closed and open", "(1,2]", "[1,2]"),
    ("subset", "1,2", "1"),
    ("superset", "1,2", "1,2,3"),
    ("digits are no set", "12", "1,2"),
    ("tuple order", "(5,3)", "(3,5)"),
    ("matrix entry", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
    ("e-notation", "4.5e33", r"4.5 \times 10^{32}"),
    ("variable", "5x+3", "5y+3"),
    ("text", "Evelyn", "Carla"),
    ("clock", "6:00", "7:00"),
    ("gold list", ["3", "-3"], "3"),
]


@pytest.mark.parametrize(("gold", "answer"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_the_same_answer_in_another_writing_is_correct(gold, answer):
    assert grade(BOX % answer, gold).correct


@pytest.mark.parametrize(("gold", "answer"), [case[1:] for case in DIFFERENT], ids=[case[0] for case in DIFFERENT])
def test_another_answer_is_wrong(gold, answer):
    graded = grade(BOX % answer, gold)
    assert not graded.correct
    assert graded.answer is not None


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{\boxed{5}}", "5"),
        (r"first \boxed{3}, then corrected: \boxed{5}", "5"),
        (r"x = \boxed{4} or \boxed{5}", "4,5"),
        (r"so \boxed{\frac{1}{2}", r"\frac12"),
        (r"$\boxed{12$", "12"),
        (r"The final answer is $\frac{3}{4}$. I hope it is correct.", "3/4"),
        ("I get 7", "7"),
    ],
)
def test_where_the_answer_stands(response, gold):
    assert grade(response, gold).correct


@pytest.mark.parametrize("response", ["", "I do not know.", r"\boxed{}", "\x00" * 50])
def test_no_answer_is_wrong_and_an_extraction_failure(response):
    graded = grade(response, "5")
    assert not graded.correct
    assert graded.answer is None


def test_lenient_accepts_small_errors_and_percentages_only_beside_the_exact_score():
    for answer in ("3.14159", "314.159", "0.0314159"):
        graded = grade(BOX % answer, r"\pi")
        assert (graded.correct, graded.lenient) == (False, True)
    assert not grade(BOX % "3.15", r"\pi").lenient


def test_numbers_beyond_a_float_are_not_close_to_each_other():
    graded = grade(BOX % "10^{400}", "10^{500}")
    assert (graded.correct, graded.lenient, graded.answer) == (False, False, "10^{400}")
    assert grade(BOX % "10^{400}", "10^{400}").correct


def test_garbage_is_wrong_quickly_and_the_judge_survives():
    garbage = r"\boxed{" + r"(]{\frac \sqrt[ " * 6000
    with Judges(1, time_limit=2) as judges:
        assert not judges.submit(garbage, "5").result().correct
        assert not judges.submit("(]{ \\frac " * 10000, "5").result().correct
        assert judges.submit(BOX % "5", "5").result().correct


@pytest.mark.parametrize("hang", ["9^{9^{9^{9^{9}}}}", "(((10!)!)!)!", r"\sum_{n=1}^{10^{30}} \frac{1}{n!+\sin n}"])
def test_an_expression_that_would_hang_sympy_is_cut_off(hang):
    with Judges(1, time_limit=1) as judges:
        graded = judges.submit(BOX % hang, "7").result(timeout=60)
        assert graded.timed_out
        assert not graded.correct
        assert judges.submit(BOX % "7", "7").result().correct


def test_a_judge_that_no_longer_answers_is_replaced():
    with Judges(1, time_limit=2.0) as judges:
        assert judges.submit(BOX % "7", "7").result().correct
        stuck = judges._idle.get()
        judges._idle.put(stuck)
        os.kill(stuck.process.pid, signal.SIGSTOP)
        assert judges.submit(BOX % "7", "7").result().timed_out
        assert judges.submit(BOX % "7", "7").result().correct


OPTIONS = {"A": "Aspirin", "B": "Beta blocker", "C": "Type 1", "D": "Type 10"}


@pytest.mark.parametrize(
    ("response", "chosen"),
    [
        (r"The answer is A. No: \boxed{B}", "B"),
        (r"\boxed{\text{(C) Type 1}}", "C"),
        (r"\boxed{Beta blocker}", "B"),
        ("First I thought A, but the answer is (D).", "D"),
        ("Reasoning about a thing.\n**C**", "C"),
        ("It must be type 10", "D"),
        ("It is aspirin or a beta blocker", None),
        ("A patient has a cold.", None),
    ],
)
def test_multiple_choice_boxed(response, chosen):
    graded = grade(response, "B", options=OPTIONS)
    assert graded.answer == chosen
    assert graded.correct == (chosen == "B")


@pytest.mark.parametrize(
    ("response", "chosen"),
    [
        (r"The answer is \textbf{B}", "B"),
        (r"The answer is $\mathbf{(B)}$.", "B"),
        (r"The answer is \(\text{B}\)", "B"),
        ("**Answer:** B", "B"),
        ("**Final Answer**: (B) beta", "B"),
        ("ANSWER IS: B", "B"),
        ("The answer is option B.", "B"),
        ("The correct answer is A because it is early.", "A"),
        ("Answer: A", "A"),
        ("Answer: I.", "I"),
        ("Answer: (A) clot", "A"),
        ("Final answer: a clot", None),
        ("Final answer: A clot", None),
        ("The most likely answer is a pulmonary embolism.", None),
        ("To answer a question like this", None),
        ("My answer: I would choose C.", None),
        ("The answer is B-cell lymphoma", None),
        ("The answer is B12", None),
        ("The answer isB", None),
        ("Option C can be left out", None),
    ],
)
def test_the_letter_that_is_said_is_no_word(response, chosen):
    options = {letter: f"thing {letter.lower()}" for letter in "ABCDEFGHI"}
    assert by_box(response, options) == chosen


@pytest.mark.parametrize(
    ("response", "chosen"),
    [(r"\boxed{B} is what I say, not C", "C"), ("A patient has a cold.", "A"), ("beta blokcer", "B"), ("", "A")],
)
def test_multiple_choice_last_letter_never_abstains(response, chosen):
    assert grade(response, "B", options=OPTIONS, rule="last-letter").answer == chosen


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match=r"first-letter.*boxed, last-letter"):
        grade("A", "A", options=OPTIONS, rule="first-letter")


class Contradiction:
    """What sympy makes of `0 \\cdot 1 \\cdot 1` under some hash seeds."""

    is_number = True

    @property
    def is_real(self):
        raise InconsistentAssumptions


def test_what_sympy_cannot_evaluate_is_no_number():
    graded = grade(BOX % r"\log_{1} 5", "2")
    assert graded == Grade(False, answer=r"\log_{1}5")
    assert _float(Contradiction()) is None


def test_grading_is_deterministic(monkeypatch):
    monkeypatch.setattr("qsft.evals.answers.grade_math", lambda *_: Grade(False, answer=str(sympy_random.random())))
    case = {"prediction": "", "gold": "2", "options": None, "rule": None}
    assert judge(case) == judge(case)
    environments = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kw: environments.append(kw["env"]) or popen(*args, **kw))
    with Judges(1) as judges:
        assert judges.submit(BOX % "2", "2").result().correct
    assert environments[0]["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError])
def test_any_failure_of_the_grader_is_a_wrong_answer_and_named(error, monkeypatch):
    def fail(prediction, gold):
        raise error("why")

    monkeypatch.setattr("qsft.evals.answers.grade_math", fail)
    case = {"prediction": BOX % "2", "gold": "2", "options": None, "rule": None}
    assert judge_in_time(case, 5) == to_record(Grade(False, failure=f"{error.__name__}: why"))


def test_two_judges_grade_a_thousand_ordinary_answers():
    answers = [BOX % f"\\frac{{{i}}}{{{i % 7 + 2}}}" for i in range(1000)]
    golds = [f"{i}/{i % 7 + 2}" if i % 3 else str(i + 1) for i in range(1000)]
    with Judges(2) as judges:
        graded = [future.result() for future in [judges.submit(a, g) for a, g in zip(answers, golds, strict=True)]]
    assert [bool(one) for one in graded[:7]] == [False, True, True, False, True, True, False]
    assert all(one.answer for one in graded)
