import pytest
import torch

from qsft.demo.foundation import untrained
from qsft.demo.knowledge import Contexts, contexts_of_all_facts, known_facts
from qsft.demo.task import ADDING, KINDS, MULTIPLYING, WORDS, ClockProblem, evaluation_problems, fact
from qsft.targets.registry import make_target

CONTEXTS = Contexts.of_problems(evaluation_problems(40, seed=0))


def test_contexts_stand_before_the_right_result():
    for row, column, right, multiplying in zip(
        CONTEXTS.documents, CONTEXTS.positions, CONTEXTS.right.tolist(), CONTEXTS.multiplying
    ):
        operation, operand, _, result = (WORDS[i] for i in CONTEXTS.input_ids[row, column - 2 : column + 2])
        assert int(result) == right == fact(operation, int(operand))
        assert multiplying == (operation[0] == "*")
    assert len(CONTEXTS.right) == 3 * 40


def test_sft_goes_to_the_labels_and_kd_to_the_teacher():
    teacher = torch.rand(len(CONTEXTS.right), 10).softmax(dim=-1)
    assert CONTEXTS.predict(make_target("sft"), 0.25, teacher) == pytest.approx(dict.fromkeys(KINDS, 0.75))
    expected = CONTEXTS.right_by_kind(teacher)
    assert CONTEXTS.predict(make_target("kd"), 0.25, teacher) == pytest.approx(expected)
    assert CONTEXTS.predict(make_target("dft"), 0.25, teacher) is None


def test_target_sft_is_surer_than_labels_and_teacher():
    teacher = torch.full((len(CONTEXTS.right), 10), 0.1 / 9)
    teacher.scatter_(-1, CONTEXTS.right[:, None], 0.9)
    predicted = CONTEXTS.predict(make_target("target_sft", eta=0.5), 0.25, teacher)
    ratio = (0.9 / (0.1 / 9)) * ((1 - 0.25 / 9) / 0.25) ** 2  # p*(right)/p*(one slip) by hand
    assert predicted[ADDING] == pytest.approx(ratio / (ratio + 9), abs=1e-6)


def test_clean_labels_leave_no_doubt():
    teacher = torch.full((len(CONTEXTS.right), 10), 0.1)
    assert CONTEXTS.predict(make_target("target_sft"), 0.0, teacher) == pytest.approx(dict.fromkeys(KINDS, 1.0))


def test_a_model_has_a_distribution_over_numbers_in_every_context():
    numbers = CONTEXTS.number_probs(untrained(0))
    assert numbers.shape == (120, 10)
    torch.testing.assert_close(numbers.sum(dim=-1), torch.ones(120))


def test_kinds_that_do_not_occur_are_left_out():
    contexts = Contexts.of_problems([ClockProblem(1, ("+1", "+2", "-3"))])
    assert set(contexts.right_by_kind(torch.full((3, 10), 0.1))) == {ADDING}


def test_every_fact_has_one_context():
    facts = contexts_of_all_facts()
    found = [tuple(WORDS[i] for i in facts.input_ids[r, c - 2 : c]) for r, c in zip(facts.documents, facts.positions)]
    assert len(set(found)) == len(found) == 300
    assert facts.multiplying.sum() == 100


def test_knowledge_is_the_share_of_facts_whose_likeliest_result_is_right():
    facts = contexts_of_all_facts()
    model = untrained(0)
    sure = torch.zeros(300, 10).scatter(-1, facts.right[:, None], 1.0)
    assert facts.known_by_kind(sure) == {ADDING: 1.0, MULTIPLYING: 1.0}
    assert facts.known_by_kind(sure.roll(1, dims=-1)) == {ADDING: 0.0, MULTIPLYING: 0.0}
    assert model.train().training
    assert all(share < 0.5 for share in known_facts(model).values())
    assert model.training
