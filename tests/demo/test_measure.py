from random import Random

import pytest

from qsft.demo.documents import as_dataset
from qsft.demo.foundation import untrained
from qsft.demo.measure import measure, response_words
from qsft.demo.scenario import Phase
from qsft.demo.task import ERRORS, Writer, evaluation_problems
from qsft.demo.training import fit
from qsft.inference.sampling import Generation
from qsft.progress import Progress

PROBLEMS = evaluation_problems(4, seed=0)


def test_words_show_whether_a_response_ended():
    assert response_words(Generation("d", 0, "ans 8", 3, "stop")) == ["ans", "8", "<eos>"]
    assert response_words(Generation("d", 0, "ans 8", 2, "length")) == ["ans", "8"]


def test_an_untrained_model_is_wrong_in_form():
    progress = Progress("measure", 20, "answers", show=False)
    measured = measure(untrained(0), PROBLEMS, samples=4, progress=progress)
    assert measured.average == measured.greedy == measured.pass_at_n == 0
    assert sum(measured.errors.values()) == pytest.approx(100)
    assert measured.errors["form"] > 50
    assert progress.done == 4 * 4 + 4


def test_a_model_that_knows_the_answers_by_heart_is_right():
    sure = Writer(slips=0.0, preferred=0)
    known = [[*p.prompt, *sure.solution(p, Random(0))] for p in PROBLEMS] * 200
    model = untrained(0)
    progress = Progress("fit", 50, "steps", show=False)
    fit(model, as_dataset(known), Phase(50, 16, 3e-3), seed=0, progress=progress)
    measured = measure(model, PROBLEMS, samples=4)
    assert progress.done == 50
    assert measured.greedy == 100
    assert measured.average > 80
    assert set(measured.errors) == set(ERRORS)
