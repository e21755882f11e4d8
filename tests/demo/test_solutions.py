import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsft.demo.solutions import ADDING, COPYING, ERRORS, FORM, MULTIPLYING, first_error, given_answer
from qsft.demo.vocabulary import WORDS
from qsft.demo.world import ClockProblem

PROBLEM = ClockProblem(7, ("+5", "*3", "-8"))
RIGHT = "first +5 7 = 2 then *3 2 gives 6 finally -8 6 is 8 ans 8 <eos>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (RIGHT, "8"),
        ("ans 8 <eos>", "8"),
        ("so 8 <eos> ans 3 <eos>", "8"),  # the first <eos> ends it
        ("result 3", None),  # no end
        ("ans 8 hmm <eos>", None),  # not right before the end
        ("= 8 <eos>", None),  # no answer word
        ("ans +8 <eos>", None),  # no number
        ("<eos>", None),
        ("8 <eos>", None),
        ("", None),
    ],
)
def test_the_answer_is_the_number_after_an_answer_word_right_before_the_first_end(text, answer):
    assert given_answer(text.split()) == answer


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (RIGHT, None),
        (RIGHT.replace("7 = 2", "7 = 3").replace("*3 2 gives 6", "*3 3 gives 9"), ADDING),
        (RIGHT.replace("gives 6", "gives 5").replace("-8 6 is 8", "-8 5 is 7"), MULTIPLYING),
        (RIGHT.replace("is 8", "is 9"), ADDING),
        (RIGHT.replace("+5", "+4"), COPYING),
        (RIGHT.replace("*3 2", "*3 4"), COPYING),
        (RIGHT.replace("ans 8", "ans 7"), COPYING),
        (RIGHT.replace("gives", "hmm"), FORM),
        (RIGHT.replace("first", "7"), FORM),
        (RIGHT.replace("ans", "is"), FORM),
        (RIGHT.removesuffix(" <eos>"), FORM),
        ("first +5 7", FORM),
        ("", FORM),
    ],
)
def test_the_first_error_has_a_kind(text, error):
    assert first_error(PROBLEM, text.split()) == error


def test_two_errors_may_cancel_and_the_answer_is_right():
    problem = ClockProblem(7, ("+5", "*0", "-8"))
    text = "first +5 7 = 3 then *0 3 gives 0 finally -8 0 is 2 ans 2 <eos>"
    words = text.split()
    assert given_answer(words) == problem.answer
    assert first_error(problem, words) == ADDING


@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_words_can_be_read_and_a_faultless_solution_is_correct(words):
    error = first_error(PROBLEM, words)
    assert error is None or error in ERRORS
    assert error is not None or given_answer(words) == PROBLEM.answer
