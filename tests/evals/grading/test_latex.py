"""LaTeX wrappers are removed as a fixpoint of the obvious regular expression would."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from qsft.evals.grading.latex import unwrap

WRAPPER = re.compile(r"\\(?:text|mbox)\s*\{([^{}]*)\}")
PIECES = (r"\text{", r"\text {", r"\mbox{", r"\frac{", "{", "}", "\\{", "\\}", "a", " ", "text")


def unwrap_repeatedly(text):
    while True:
        unwrapped = WRAPPER.sub(r"\1", text)
        if unwrapped == text:
            return text
        text = unwrapped


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_unwrap_is_the_fixpoint_of_the_regular_expression(text):
    assert unwrap(text, ("text", "mbox")) == unwrap_repeatedly(text)
