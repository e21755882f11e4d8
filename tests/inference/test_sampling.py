"""Sampling settings and requests: what is out of range raises, and how requests are planned."""

import pytest

from qsft.inference.sampling import Request, Sampling, plan_requests


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_samples": 0}, "num_samples = 0 is out of range"),
        ({"temperature": -1.0}, "temperature = -1"),
        ({"top_p": 0.0}, "top_p = 0"),
        ({"max_new_tokens": 0}, "max_new_tokens = 0"),
        ({"temperature": 0.0, "num_samples": 4}, "num_samples = 4 with temperature = 0: greedy samples"),
    ],
)
def test_settings_out_of_range_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**wrong)


def test_requests_are_planned_longest_prompt_first_within_the_context():
    short = Request("short", 0, (1, 2), max_new_tokens=3)
    long = Request("long", 0, (1, 2, 3, 4))
    planned = plan_requests([short, long], max_new_tokens=10, context_length=9)
    assert [(one.problem, one.max_new_tokens) for one in planned] == [("long", 5), ("short", 3)]
    with pytest.raises(ValueError, match=r"problem long has 4 tokens.*context of 4"):
        plan_requests([long], max_new_tokens=10, context_length=4)
    with pytest.raises(ValueError, match="problem empty has no tokens"):
        plan_requests([Request("empty", 0, ())], max_new_tokens=10, context_length=None)
