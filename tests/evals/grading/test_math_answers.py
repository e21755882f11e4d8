"""Mathematical answers: what counts as the same, what does not, and where the answer stands."""

import pytest
from sympy.core.facts import InconsistentAssumptions

from qsft.evals.grading.expressions import real_value
from qsft.evals.grading.grade import Grade
from qsft.evals.grading.pool import grade

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


class Contradiction:
    """What sympy makes of `0 \\cdot 1 \\cdot 1` under some hash seeds."""

    is_number = True

    @property
    def is_real(self):
        raise InconsistentAssumptions


def test_what_sympy_cannot_evaluate_is_no_number():
    graded = grade(BOX % r"\log_{1} 5", "2")
    assert graded == Grade(False, answer=r"\log_{1}5")
    assert real_value(Contradiction()) is None


def test_wrong_answers_are_written_by_value():
    written = [grade(BOX % answer, "0").answer for answer in ("2(x+1)", "2x + 2", "2+2 \\cdot x")]
    assert len(set(written)) == 1
    assert grade(BOX % r"\{2, 1\}", "0").answer == grade(BOX % "1, 2", "0").answer
