from random import Random

import pytest

from qsft.demo.data import as_dataset
from qsft.demo.fit import fit
from qsft.demo.measure import measure, words_of
from qsft.demo.models import untrained
from qsft.demo.reading import ERRORS
from qsft.demo.settings import Phase
from qsft.demo.world import Writer, evaluation_problems
from qsft.evals.request import Generation

PROBLEMS = evaluation_problems(4, seed=0)


def test_words_show_whether_a_response_ended():
    assert words_of(Generation("d", 0, "ans 8", 3, "stop")) == ["ans", "8", "<eos>"]
    assert words_of(Generation("d", 0, "ans 8", 2, "length")) == ["ans", "8"]


def test_an_untrained_model_is_wrong_in_form():
    done = []
    measured = measure(untrained(0), PROBLEMS, samples=4, advance=done.append)
    assert measured.average == measured.greedy == measured.pass_at_n == 0
    assert sum(measured.errors.values()) == pytest.approx(100)
    assert measured.errors["form"] > 50
    assert sum(done) == 4 * 4 + 4


def test_a_model_that_knows_the_answers_by_heart_is_right(tmp_path):
    sure = Writer(slips=0.0, preferred=0)
    known = [[*p.prompt, *sure.solution(p, Random(0))] for p in PROBLEMS] * 200
    model = fit(
        untrained(0), as_dataset(known), Phase(50, 16, 3e-3), seed=0, directory=tmp_path, advance=lambda _: None
    )
    measured = measure(model, PROBLEMS, samples=4, advance=lambda _: None)
    assert measured.greedy == 100
    assert measured.average > 80
    assert set(measured.errors) == set(ERRORS)
