"""The reasoning path: words do not matter, numbers and operators do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsft.curate.reasoning_paths import distance, most_different, reasoning_path

words = st.lists(st.sampled_from(["so", "we", "get", "apples", "well-known", "therefore", "each"]), max_size=4)
numbers = st.integers(min_value=0, max_value=99999)
steps = st.lists(st.tuples(numbers, st.sampled_from("+-*/"), numbers, numbers), min_size=1, max_size=4)


def write_solution(steps, fillers):
    return ". ".join(
        f"{' '.join(filler)} {a} {sign} {b} = {c} {' '.join(filler)}"
        for (a, sign, b, c), filler in zip(steps, [*fillers, *[["so"]] * len(steps)])
    )


@given(steps, st.lists(words, max_size=4), st.lists(words, max_size=4))
def test_other_words_are_the_same_path(steps, some, others):
    assert reasoning_path(write_solution(steps, some)) == reasoning_path(write_solution(steps, others))


@given(steps, numbers, st.integers(min_value=0, max_value=3))
def test_another_number_is_another_path(steps, number, which):
    a, sign, b, c = steps[which % len(steps)]
    changed = [*steps]
    changed[which % len(steps)] = (a, sign, b, number)
    assert (reasoning_path(write_solution(changed, [])) == reasoning_path(write_solution(steps, []))) == (number == c)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"$\frac{3}{4} \times 8 = 6$", "(3)/(4) * 8 = 6"),
        ("1,250 + 3.50 = 1253.5", "1250 + 3.5 = 1253.50"),
        ("x = 3 − 1", "x = 3 - 1"),
        (r"\left( 2x + 1 \right)", "(2x + 1)"),
        ("a well-known fact: 2**3 = 8", "2 ^ 3 makes 8"),
    ],
)
def test_writings_of_one_formula(one, other):
    assert reasoning_path(one) == reasoning_path(other) != ()


@pytest.mark.parametrize(("one", "other"), [("2 + 3 = 5", "3 + 2 = 5"), ("4 - 1", "4 + 1"), ("2x = 4", "2y = 4")])
def test_different_calculations(one, other):
    assert reasoning_path(one) != reasoning_path(other)


def test_prose_has_no_path():
    assert reasoning_path("I think a well-known result - by Gauss - settles it.") == ()


@given(
    st.lists(st.lists(st.sampled_from("123+-"), max_size=5).map(tuple), max_size=6, unique=True),
    st.integers(min_value=0, max_value=7),
)
def test_most_different_keeps_so_many_in_order(found, count):
    chosen = most_different(found, count)
    assert len(chosen) == min(count, len(found))
    assert chosen == [path for path in found if path in chosen]


def test_most_different_leaves_the_near_one_out():
    near, far = ("1", "+", "2", "3"), ("7", "*", "9", "63")
    original = ("1", "+", "2", "4")
    assert most_different([near, far], 1, [original]) == [far]
    assert distance(near, near) == 0 < distance(near, original) < distance(near, far) == 1


def test_a_number_of_thousands_of_digits_is_compared_as_text():
    assert reasoning_path("9" * 5000 + " + 1") == ("9" * 5000, "+", "1")
