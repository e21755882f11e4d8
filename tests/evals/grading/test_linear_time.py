"""Reading a response takes time linear in its length, also when the response is made to be slow.

Measured is how many times longer a text of eight times the length takes: about 8 for linear time, 64 for quadratic
time. A busy machine distorts the ratio much less than that.
"""

import gc
import re
import time

import pytest

from qsft.curate.exercises import _OPTION_LINE
from qsft.curate.reasoning_paths import reasoning_path
from qsft.curate.self_distill import is_refusal
from qsft.evals.grading.boxes import after_thinking, boxes, last_boxed
from qsft.evals.grading.exact_numbers import parse_number
from qsft.evals.grading.latex import unwrap
from qsft.evals.grading.math_answers import extract
from qsft.evals.grading.multiple_choice import boxed_choice, li_matches
from qsft.evals.grading.notation import clean_gold, plain_text, split_answers, to_latex
from qsft.evals.grading.pool import grade

OPTIONS = {"A": "Aspirin", "B": "Beta blocker", "C": "Type 1", "D": "Type 10"}
# Functions of a length that return a text of about that length.
HOSTILE = {
    "spaces between boxes": lambda n: r"\boxed{1}" + " " * n + "x" + r"\boxed{2}",
    "boxes": lambda n: r"\boxed{1} " * (n // 10),
    "equal boxes": lambda n: r"\boxed{7}, " * (n // 11),
    "distinct boxes": lambda n: " ".join(rf"\boxed{{{i}}}" for i in range(n // 12)),
    "open boxes": lambda n: r"\boxed{" * (n // 7),
    "open boxes on lines": lambda n: "\\boxed{x\n" * (n // 9),
    "open boxes before lines": lambda n: r"\boxed{" * (n // 14) + "\n" * (n // 14),
    "box words without braces": lambda n: r"\boxed " * (n // 7),
    "a long box": lambda n: r"\boxed{" + "A, " * (n // 3) + "x}",
    "nested wrappers": lambda n: r"\boxed{" + r"\text{" * (n // 12) + "B" + "}" * (n // 12) + "}",
    "open wrappers between boxes": lambda n: r"\boxed{1}" + r"\text{ " * (n // 7) + r"\boxed{2}",
    "braces": lambda n: "{" * (n // 2) + "}" * (n // 2),
    "brackets": lambda n: "(" * n,
    "roots": lambda n: "√(" * (n // 2),
    "a root before spaces": lambda n: "√" + " " * n,
    "open fractions": lambda n: r"\frac{" * (n // 6),
    "digits": lambda n: "1" * n,
    "operators": lambda n: "+ " * (n // 2),
    "empty lines": lambda n: "\n" * n,
    "spaces": lambda n: " " * n + "x",
    "stars": lambda n: "answer" + "*" * n,
    "colons": lambda n: "answer:" + ":" * n + "x",
    "answers": lambda n: "answer is " * (n // 10),
    "an answer before spaces": lambda n: "answer is" + " " * n + "x",
    "letters": lambda n: "A " * (n // 2),
    "option lines": lambda n: "\n(A) " * (n // 5),
    "commas": lambda n: "1," * (n // 2),
    "thoughts": lambda n: "</think>" * (n // 8),
    "headings": lambda n: "## Final Response\n\n" * (n // 19),
    "one letter": lambda n: "a" * n,
    "option texts": lambda n: "type 1 " * (n // 7),
    "texts like options": lambda n: "bets blokker " * (n // 13),
}
# Everything that reads a whole response or question. `extract` reads one without a box only in part.
READERS = {
    "after_thinking": after_thinking,
    "boxes": boxes,
    "last_boxed": last_boxed,
    "extract": lambda text: extract(text) if "\\boxed" in text else None,
    "unwrap": unwrap,
    "to_latex": to_latex,
    "plain_text": plain_text.__wrapped__,
    "clean_gold": clean_gold,
    "split_answers": split_answers,
    "parse_number": parse_number,
    "boxed_choice": lambda text: boxed_choice(text, OPTIONS),
    "li_matches": lambda text: li_matches(text, OPTIONS),
    "options of a question": _OPTION_LINE.findall,
    "reasoning_path": reasoning_path,
    "is_refusal": is_refusal,
}
LENGTH = 10_000  # characters of the shorter text
LONGER = 8  # times that length
MEASURABLE = 0.005  # seconds; quadratic time over the longer text takes more
MOST = 24.0  # times the time of the shorter text; between linear and quadratic


def cpu_seconds(read, text):
    start = time.process_time()
    read(text)
    return time.process_time() - start


def growth(read, hostile):
    """How many times longer the longer text takes; 1.0 if that is too fast to be measured."""
    short_text = hostile(LENGTH)
    long_text = hostile(LONGER * LENGTH)
    if cpu_seconds(read, long_text) < MEASURABLE:
        return 1.0
    # The least times: other work on the machine only adds to them.
    long_seconds = min(cpu_seconds(read, long_text) for _ in range(5))
    return long_seconds / min(cpu_seconds(read, short_text) for _ in range(5))


@pytest.fixture(autouse=True)
def without_garbage_collection():
    """A collection over all modules of the test session takes longer than what is measured."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_time_grows_linearly_with_the_length(hostile, reader):
    assert growth(READERS[reader], HOSTILE[hostile]) < MOST


def test_the_measurement_finds_quadratic_time():
    separator = re.compile(r"[\s$,;.]*(?:and|or)?[\s$,;]*")  # two quantifiers that overlap
    assert growth(separator.fullmatch, lambda n: " " * (n // 20) + "x") > MOST


def test_a_hundred_thousand_boxes_are_one_answer():
    assert last_boxed(r"\boxed{1} " * 100_000) == "1"
    assert grade(r"\boxed{1} " * 100_000, "1").correct
    assert grade(r"\boxed{B} " * 100_000, "B", options=OPTIONS).correct


def test_the_last_box_is_found_behind_many_spaces():
    assert last_boxed(r"\boxed{1}" + " " * 48_000 + "x" + r"\boxed{2}") == "2"


@pytest.mark.slow
@pytest.mark.parametrize("hostile", HOSTILE)
def test_grading_a_hostile_response_ends_with_a_grade(hostile, judges):
    """The judges stop what takes too long; the caller's own work is measured above."""
    response = HOSTILE[hostile](100_000)
    as_number = judges.submit(response, "5")
    as_choice = judges.submit(response, "A", options=OPTIONS, rule="li")
    assert not as_number.result(timeout=120).correct
    assert not as_number.result().failure
    assert as_choice.result(timeout=120).choices
