from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsft.demo.solutions import first_error
from qsft.demo.vocabulary import EOS, EQUALS, IDS, OPERATIONS
from qsft.demo.world import (
    DEMONSTRATOR,
    LENGTH,
    PROMPT_LENGTH,
    TEACHER,
    TEACHERS,
    ClockProblem,
    Writer,
    chains,
    evaluation_problems,
    fact,
    pretraining_corpus,
)

problems = st.builds(ClockProblem, st.integers(0, 9), st.tuples(*[st.sampled_from(OPERATIONS)] * 3))
writers = st.builds(
    Writer, st.floats(0, 1), st.floats(0, 1), st.one_of(st.none(), st.integers(0, 5)), st.integers(0, 9)
)


def slips_in(words):
    """(wrong, all) results of a document."""
    steps = [(words[at - 2], words[at - 1], words[at + 1]) for at, word in enumerate(words) if word in EQUALS]
    return sum(fact(op, int(x)) != int(r) for op, x, r in steps), len(steps)


def test_the_example_of_the_module():
    problem = ClockProblem(7, ("+5", "*3", "-8"))
    assert problem.results == [2, 6, 8]
    assert problem.answer == "8"
    assert " ".join(problem.prompt) == "<bos> 7 +5 *3 -8 ?"


@given(st.sampled_from(OPERATIONS), st.integers(0, 9))
def test_facts_are_arithmetic_mod_10(operation, operand):
    assert fact(operation, operand) == eval(f"({operand} {operation[0]} {operation[1:]}) % 10")


@given(problems, writers, st.integers(0, 1000))
def test_a_solution_is_a_chain_that_goes_on_from_its_own_results(problem, writer, seed):
    words = writer.solution(problem, Random(seed))
    assert len(problem.prompt) == PROMPT_LENGTH
    assert len(words) == LENGTH - PROMPT_LENGTH
    assert all(word in IDS for word in words)
    steps = [words[at : at + 5] for at in (0, 5, 10)]
    assert tuple(step[1] for step in steps) == problem.operations
    assert [step[2] for step in steps] == [str(problem.start), steps[0][4], steps[1][4]]
    assert words[-2:] == [steps[-1][4], EOS]


@given(problems, st.integers(0, 1000))
def test_a_writer_who_never_slips_is_right(problem, seed):
    words = Writer(slips=0.0).solution(problem, Random(seed))
    assert first_error(problem, words) is None
    assert words[-2] == problem.answer


@given(problems, st.integers(0, 1000))
def test_a_slip_is_never_the_right_result(problem, seed):
    assert slips_in(Writer(slips=1.0).solution(problem, Random(seed))) == (3, 3)


@pytest.mark.parametrize(("teacher", "wrong_below"), [("right", 0), ("half", 5), ("wrong", 10)])
def test_wrong_teachers_are_wrong_in_their_products_only(teacher, wrong_below):
    sure = replace(TEACHERS[teacher], slips=0.0)
    for words in chains(sure, 200, seed=0):
        for at, word in enumerate(words):
            if word in EQUALS:
                operation, operand = words[at - 2], int(words[at - 1])
                right = fact(operation, operand) == int(words[at + 1])
                assert right == (operation[0] != "*" or operand >= wrong_below)


@pytest.mark.parametrize("noise", [0.0, 0.25, 0.6])
def test_noise_is_the_share_of_slips_and_changes_nothing_else(noise):
    clean = chains(replace(DEMONSTRATOR, slips=0.0), 1000, seed=3)
    noisy = chains(replace(DEMONSTRATOR, slips=noise), 1000, seed=3)
    wrong, steps = map(sum, zip(*map(slips_in, noisy)))
    assert wrong / steps == pytest.approx(noise, abs=0.03)
    assert [d[:PROMPT_LENGTH] for d in noisy] == [d[:PROMPT_LENGTH] for d in clean]
    phrasing = [[word for word in d if not word.isdigit()] for d in noisy]
    assert phrasing == [[word for word in d if not word.isdigit()] for d in clean]


def test_the_base_reads_what_the_world_says():
    documents = pretraining_corpus(6000, seed=0)
    facts = [d for d in documents if "?" not in d and sum(word in EQUALS for word in d) == 6 and d[-1].isdigit()]
    broken = [d for d in documents if "?" in d[:PROMPT_LENGTH] and d[-3] not in ("ans", "so", "result")]
    whole = [d for d in documents if "?" in d[:PROMPT_LENGTH] and d[-1] == EOS and d not in broken]
    assert len(facts) / 6000 == pytest.approx(0.40, abs=0.03)
    assert (len(whole) + len(broken)) / 6000 == pytest.approx(0.55, abs=0.03)
    assert len(broken) / (len(whole) + len(broken)) == pytest.approx(0.2, abs=0.03)
    wrong, steps = map(sum, zip(*map(slips_in, [*facts, *whole])))
    assert wrong / steps == pytest.approx(0.15, abs=0.02)
    operations = [word for d in facts for word in d if word in OPERATIONS]
    assert sum(op[0] == "*" for op in operations) / len(operations) == pytest.approx(0.06, abs=0.015)


def test_the_teacher_and_the_demonstrators_prefer_other_words():
    teacher, demonstrator = (
        [words[PROMPT_LENGTH] for words in chains(writer, 300, seed=0)] for writer in (TEACHER, DEMONSTRATOR)
    )
    assert max(set(teacher), key=teacher.count) != max(set(demonstrator), key=demonstrator.count)
    assert len(set(demonstrator)) == 3


def test_evaluation_problems_are_distinct_and_not_demonstrated():
    held_out = evaluation_problems(256, seed=0)
    assert len(set(held_out)) == 256
    demonstrated = chains(DEMONSTRATOR, 5120, seed=0, without=frozenset(held_out))
    asked = {tuple(words[:PROMPT_LENGTH]) for words in demonstrated}
    assert not asked & {tuple(problem.prompt) for problem in held_out}


def test_the_same_seed_is_the_same_world_and_another_is_not():
    assert pretraining_corpus(20, 1) == pretraining_corpus(20, 1) != pretraining_corpus(20, 2)
    assert chains(TEACHER, 20, 1) == chains(TEACHER, 20, 1) != chains(TEACHER, 20, 2)
