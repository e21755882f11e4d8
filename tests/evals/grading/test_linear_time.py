"""Reading a response takes time linear in its length, also when the response is made to be slow."""

import statistics
import time

import pytest

from qsft.evals.grading.boxes import after_thinking, boxes, last_boxed
from qsft.evals.grading.latex import unwrap
from qsft.evals.grading.math_answers import clean_gold, plain, split_answers
from qsft.evals.grading.multiple_choice import boxed_choice, li_matches

OPTIONS = {"A": "Aspirin", "B": "Beta blocker", "C": "Type 1", "D": "Type 10"}
HOSTILE = {
    "spaces between boxes": lambda n: r"\boxed{1}" + " " * n + "x" + r"\boxed{2}",
    "boxes": lambda n: r"\boxed{1} " * (n // 10),
    "equal boxes": lambda n: r"\boxed{7}, " * (n // 11),
    "open boxes": lambda n: r"\boxed{" * (n // 7),
    "open boxes on lines": lambda n: "\\boxed{x\n" * (n // 9),
    "box words without braces": lambda n: r"\boxed " * (n // 7),
    "nested wrappers": lambda n: r"\boxed{" + r"\text{" * (n // 12) + "B" + "}" * (n // 12) + "}",
    "braces": lambda n: "{" * (n // 2) + "}" * (n // 2),
    "empty lines": lambda n: "\n" * n,
    "spaces": lambda n: " " * n + "x",
    "stars": lambda n: "answer" + "*" * n,
    "colons": lambda n: "answer:" + ":" * n + "x",
    "answers": lambda n: "answer is " * (n // 10),
    "letters": lambda n: "A " * (n // 2),
    "commas": lambda n: "1," * (n // 2),
    "thoughts": lambda n: "</think>" * (n // 8),
    "headings": lambda n: "## Final Response\n\n" * (n // 19),
    "one letter": lambda n: "a" * n,
    "option texts": lambda n: "type 1 " * (n // 7),
}
READERS = {
    "after_thinking": after_thinking,
    "boxes": boxes,
    "last_boxed": last_boxed,
    "unwrap": unwrap,
    "plain": plain.__wrapped__,
    "clean_gold": clean_gold,
    "split_answers": split_answers,
    "boxed_choice": lambda text: boxed_choice(text, OPTIONS),
    "li_matches": lambda text: li_matches(text, OPTIONS),
}


def seconds(read, text):
    """The CPU time of one call, the median of three."""
    times = []
    for _ in range(3):
        start = time.process_time()
        read(text)
        times.append(time.process_time() - start)
    return statistics.median(times)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_time_grows_with_the_length_only(hostile, reader):
    read = READERS[reader]
    short = seconds(read, HOSTILE[hostile](20_000))
    long = seconds(read, HOSTILE[hostile](80_000))
    # Four times the length: linear time is four times as long, quadratic time sixteen times.
    assert long < 8 * short + 0.02


def test_the_reported_case_takes_milliseconds():
    text = r"\boxed{1}" + " " * 48_000 + "x" + r"\boxed{2}"
    assert last_boxed(text) == "2"
    assert last_boxed(r"\boxed{1} " * 100_000) == "1"
