r"""What a response puts into \\boxed{}."""

import pytest

from qsft.evals.grading.boxes import boxes, last_boxed


def test_a_nested_box_gives_the_content():
    contents = [box.content for box in boxes(r"\boxed{1} \boxed{2 \boxed{3} 4} \boxed{\{5\}}")]
    assert contents == ["1", "3", r"\{5\}"]


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("no box", None),
        (r"\boxed{}", ""),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"$\boxed{1}$, $\boxed{2}$", "1, 2"),
        (r"\boxed{1} \text{ or } \boxed{2}", "1, 2"),
        (r"\boxed{1} \quad \boxed{1}", "1"),
        ("\\boxed{1}" + " " * 100 + "x" + "\\boxed{2}", "2"),
        (r"\fbox {7}", "7"),
        ("\\boxed{x + 1\nmore text", "x + 1"),
        (r"\boxed{\frac{1}{2}", r"\frac{1}{2}"),
    ],
)
def test_the_last_box_is_the_answer(response, answer):
    assert last_boxed(response) == answer
