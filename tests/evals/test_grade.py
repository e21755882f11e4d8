"""The grader on hand-made answers: what counts as the same, what does not, and what must not hang."""

import os
import signal
from dataclasses import asdict

import psutil
import pytest
from sympy.core import random as sympy_random
from sympy.core.facts import InconsistentAssumptions

from qsft.evals.answers import _float
from qsft.evals.grade import Grade, better_reading, boxes, by_box, grade, last_boxed, paper_matches
from qsft.evals.judge import Judges, OutOfTime, judge, judge_in_time

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
    ("thousands, a gap", "1000", "1 000"),
    ("degrees", "90", r"90^\circ"),
    ("polynomial", "x^2+2x+1", "(x+1)^2"),
    ("surd", r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    ("equation", "y=2x+3", "2x+3"),
    ("dirty gold", "$12$.", "12"),
    ("float gold", 27.0, "27"),
    ("gold list", ["3", "-3"], "-3, 3"),
    ("clock", "6:00", "6:00"),
    ("brackets of a pair", "(5,3)", "[5,3]"),
    ("repeated root", "-2", "-2,-2"),
    ("repeated root in words", "-2", r"-2 \text{ and } -2"),
    ("degree sign", "90", "90°"),
    ("vulgar fraction", r"\frac{1}{2}", "½"),
    ("mixed vulgar fraction", "2.5", "2½"),
    ("root sign", r"\sqrt{2}", "√2"),
    ("root sign with brackets", r"3\sqrt{x+1}", "3√(x+1)"),
    ("option letter before the answer", "5", r"(E)\ 5"),
    ("option letter in bold", "5", r"\textbf{(E)}\ 5"),
    ("inequality as interval", r"(2,\infty)", "x > 2"),
    ("interval as inequality", "x>2", r"(2,\infty)"),
    ("inequality in signs", r"[2,\infty)", "x ≥ 2"),
    ("bounded inequality", r"[2,5]", r"2 \le x \le 5"),
    ("tiny number", "2.88e-19", r"2.88 \times 10^{-19}"),
    ("tiny number, a unit", "2.88e-19", r"2.88 \times 10^{-19} \text{ J}"),
    ("tiny decimal", "0.0000003", "3e-7"),
    ("six decimals", "1/3", "0.333333"),
    ("no mixed number", "7/3", r"2\frac{1}{3}"),
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
    ("open and closed interval", "(1,2)", "[1,2]"),
    ("closed bound", r"(2,\infty)", r"x \ge 2"),
    ("tiny number, magnitude", "2.88e-19", "2.88e-18"),
    ("tiny number, sign", "2.88e-19", r"-2.88 \times 10^{-19}"),
    ("tiny number, digits", "2.88e-19", "2.89e-19"),
    ("tiny number, nothing", "2.88e-19", "0"),
    ("tiny decimal", "0.0000003", "0.0000004"),
    ("tiny fraction", r"\frac{1}{1000000}", r"\frac{1}{1000100}"),
    ("five decimals", "1/3", "0.33333"),
    ("mixed number", "21/3", "2 1/3"),
    ("root and number", "4", "2,-2"),
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
        (r"<think>\boxed{3}?</think> It is \boxed{7}", "7"),
        (r"<think>\boxed{3}?</think> The answer is 7.", "7"),
    ],
)
def test_where_the_answer_stands(response, gold):
    assert grade(response, gold).correct


@pytest.mark.parametrize("response", ["", r"<think>\boxed{5}</think>", "I do not know.", r"\boxed{}", "\x00" * 50])
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
    monkeypatch.setattr("qsft.evals.judge.PATIENCE", 1.0)
    os.kill(hasty._judges[0].process.pid, signal.SIGSTOP)
    assert hasty.submit(BOX % "88", "88").result().timed_out
    monkeypatch.undo()
    assert hasty.submit(BOX % "99", "99").result().correct


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
    ("boxed", "chosen"),
    [
        (r"\boxed{\textbf{B}}", "B"),
        (r"\boxed{\mathbf{\text{B}}}", "B"),
        (r"\boxed{A clot in the lung}", "C"),
        (r"\boxed{\text{A clot in the lung.}}", "C"),
        (r"\boxed{A: Aspirin}", "A"),
        (r"\boxed{B Beta blocker}", "B"),
        (r"\boxed{(D)}", "D"),
        (r"\boxed{Option B}", "B"),
        (r"\boxed{The answer is B}", "B"),
        (r"\boxed{b}", "B"),
        (r"\boxed{(b)}", "B"),
        (r"\fbox{B}", "B"),
        (r"so \boxed{B", "B"),
        (r"so $\boxed{\text{B", "B"),
        (r"The answer is D: \boxed{A and C}", None),
        (r"\boxed{A, C}", None),
        (r"\boxed{A} and \boxed{C}", None),
        (r"\boxed{B} \boxed{B}", "B"),
        (r"\boxed{D}, that is \boxed{42}", "D"),
        (r"<think>\boxed{A}</think>\boxed{B}", "B"),
        ("Option B", "B"),
        ("b", "B"),
        ("(b).", "B"),
    ],
)
def test_what_a_box_chooses(boxed, chosen):
    options = {"A": "Aspirin", "B": "Beta blocker", "C": "A clot in the lung", "D": "Vitamin B12"}
    assert by_box(boxed, options) == chosen


@pytest.mark.parametrize(
    ("response", "first", "last"),
    [
        ("The answer is B. A deficiency of iron", "B", "B"),  # the article is no match, and step 2 goes before step 3
        ("The answer is B. No, the answer is\nC.", "B", "C"),
        ("The answer is N", "N", "N"),  # step 2 takes any letter from A to N
        ("The answer is b. (C)", "C", "C"),  # a capital letter
        ("B or C?\n## Final Response\nD, not A.", "D", "A"),  # only what follows the heading counts
        ("## Final Response\nA.\n## Final Response\nB.", "B", "B"),
        ("A deficiency of iron: (B)", "B", "B"),
        ("A. Not B", "A", "B"),
        ("(A) and (D)", "A", "D"),
        ("Vitamins B12 and D3, option C.", "C", "C"),
        ("B-cells, says C", "B", "C"),  # a hyphen is no word character
        ("It is TYPE 10, no, aspirin", "D", "A"),
        ("It is type 1", "C", "C"),
        ("beta blokcer", "B", "B"),
        ("", "D", "D"),  # nothing is like it: the last among equals
    ],
)
def test_the_papers_rule(response, first, last):
    assert paper_matches(response, OPTIONS) == (first, last)
    graded = grade(response, last, options=OPTIONS, rule="paper")
    assert graded.correct
    assert (graded.choices["first"], graded.choices["last"]) == (first, last)


def test_a_data_sets_score_is_the_better_reading():
    graded = [grade(text, "A", options=OPTIONS, rule="paper") for text in ("(B), no, (A)", "(A), not (B)", "(C) (A)")]
    name, read = better_reading(graded, ["A"] * 3)
    assert (name, [one.correct for one in read]) == ("last", [True, False, True])
    assert better_reading(graded, ["B", "A", "C"])[0] == "first"
    assert [one.answer for one in better_reading(graded, ["B", "A", "C"])[1]] == ["B", "A", "C"]


def test_an_unknown_rule_is_named():
    with pytest.raises(ValueError, match=r"first-letter.*boxed, paper"):
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


def test_grading_is_deterministic(monkeypatch, hasty):
    monkeypatch.setattr("qsft.evals.answers.grade_math", lambda **_: Grade(False, answer=str(sympy_random.random())))
    case = {"prediction": "", "gold": "2"}
    assert judge(case) == judge(case)
    assert hasty.submit(BOX % "2", "2").result().correct
    assert psutil.Process(hasty._judges[0].process.pid).environ()["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("error", [ValueError, TypeError, AttributeError])
def test_any_failure_of_the_grader_is_a_wrong_answer_and_named(error, monkeypatch):
    def fail(prediction, gold):
        raise error("why")

    monkeypatch.setattr("qsft.evals.answers.grade_math", fail)
    case = {"prediction": BOX % "2", "gold": "2"}
    assert judge_in_time(case, 5) == asdict(Grade(False, failure=f"{error.__name__}: why"))


def test_a_decided_grade_outlives_a_writing_that_takes_too_long(monkeypatch):
    def forever(answer):
        raise OutOfTime

    monkeypatch.setattr("qsft.evals.answers.canonical", forever)
    graded = judge_in_time({"prediction": BOX % "x + 1", "gold": "3"}, 5)
    assert (graded["correct"], graded["timed_out"], graded["answer"]) == (False, False, "x+1")
    monkeypatch.setattr("qsft.evals.answers._parse", forever)
    hard = r"9^{9^{9^{9^{9}}}}"
    graded = judge_in_time({"answer": hard, "gold": hard}, 5)
    assert (graded["correct"], graded["timed_out"]) == (True, False)


def test_wrong_answers_are_written_by_value():
    written = [grade(BOX % answer, "0").answer for answer in ("2(x+1)", "2x + 2", "2+2 \\cdot x")]
    assert len(set(written)) == 1
    assert grade(BOX % r"\{2, 1\}", "0").answer == grade(BOX % "1, 2", "0").answer


def test_boxes_are_found_in_one_pass_however_many_are_open():
    assert last_boxed(r"\boxed{" * 50_000) is not None
    assert [content for *_, content in boxes(r"\boxed{1} \boxed{2 \boxed{3} 4} \boxed{\{5\}}")] == ["1", "3", r"\{5\}"]


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
