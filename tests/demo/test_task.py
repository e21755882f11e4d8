from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qsft.demo.foundation import untrained
from qsft.demo.task import (
    ADDING,
    COPYING,
    DEMONSTRATOR,
    EOS,
    EQUALS,
    ERRORS,
    FORM,
    IDS,
    LENGTH,
    MULTIPLYING,
    OPERATIONS,
    PROMPT_LENGTH,
    TEACHER,
    TEACHERS,
    WORDS,
    ClockProblem,
    Writer,
    chains,
    encode,
    evaluation_problems,
    fact,
    first_error,
    given_answer,
    make_tokenizer,
    pretraining_corpus,
)  # fmt: skip
from qsft.demo.training import save

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
                operation = words[at - 2]
                operand = int(words[at - 1])
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


def test_the_pretraining_corpus_has_its_shares_of_kinds():
    documents = pretraining_corpus(6000, seed=0)
    facts = [d for d in documents if "?" not in d and sum(word in EQUALS for word in d) == 6 and d[-1].isdigit()]
    broken = [d for d in documents if "?" in d[:PROMPT_LENGTH] and d[-3] not in ("ans", "so", "result")]
    complete = [d for d in documents if "?" in d[:PROMPT_LENGTH] and d[-1] == EOS and d not in broken]
    assert len(facts) / 6000 == pytest.approx(0.40, abs=0.03)
    assert (len(complete) + len(broken)) / 6000 == pytest.approx(0.55, abs=0.03)
    assert len(broken) / (len(complete) + len(broken)) == pytest.approx(0.2, abs=0.03)
    wrong, steps = map(sum, zip(*map(slips_in, [*facts, *complete])))
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
    problems = {tuple(words[:PROMPT_LENGTH]) for words in demonstrated}
    assert not problems & {tuple(problem.prompt) for problem in held_out}


def test_documents_depend_on_the_seed_alone():
    assert pretraining_corpus(20, 1) == pretraining_corpus(20, 1) != pretraining_corpus(20, 2)
    assert chains(TEACHER, 20, 1) == chains(TEACHER, 20, 1) != chains(TEACHER, 20, 2)


PROBLEM = ClockProblem(7, ("+5", "*3", "-8"))
RIGHT = "first +5 7 = 2 then *3 2 gives 6 finally -8 6 is 8 ans 8 <eos>"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (RIGHT, "8"),
        ("ans 8 <eos>", "8"),
        ("so 8 <eos> ans 3 <eos>", "8"),  # the first <eos> ends it
        ("result 3", None),  # no end
        ("ans 8 hmm <eos>", None),  # not right before the end
        ("= 8 <eos>", None),  # no answer word
        ("ans +8 <eos>", None),  # no number
        ("<eos>", None),
        ("8 <eos>", None),
        ("", None),
    ],
)
def test_the_answer_is_the_number_after_an_answer_word_right_before_the_first_end(text, answer):
    assert given_answer(text.split()) == answer


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (RIGHT, None),
        (RIGHT.replace("7 = 2", "7 = 3").replace("*3 2 gives 6", "*3 3 gives 9"), ADDING),
        (RIGHT.replace("gives 6", "gives 5").replace("-8 6 is 8", "-8 5 is 7"), MULTIPLYING),
        (RIGHT.replace("is 8", "is 9"), ADDING),
        (RIGHT.replace("+5", "+4"), COPYING),
        (RIGHT.replace("*3 2", "*3 4"), COPYING),
        (RIGHT.replace("ans 8", "ans 7"), COPYING),
        (RIGHT.replace("gives", "hmm"), FORM),
        (RIGHT.replace("first", "7"), FORM),
        (RIGHT.replace("ans", "is"), FORM),
        (RIGHT.removesuffix(" <eos>"), FORM),
        ("first +5 7", FORM),
        ("", FORM),
    ],
)
def test_the_first_error_has_a_kind(text, error):
    assert first_error(PROBLEM, text.split()) == error


def test_two_errors_may_cancel_and_the_answer_is_right():
    problem = ClockProblem(7, ("+5", "*0", "-8"))
    text = "first +5 7 = 3 then *0 3 gives 0 finally -8 0 is 2 ans 2 <eos>"
    words = text.split()
    assert given_answer(words) == problem.answer
    assert first_error(problem, words) == ADDING


@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_words_can_be_read_and_a_faultless_solution_is_correct(words):
    error = first_error(PROBLEM, words)
    assert error is None or error in ERRORS
    assert error is not None or given_answer(words) == PROBLEM.answer


TOKENIZER = make_tokenizer()


def test_words_are_distinct_and_about_75():
    assert len(set(WORDS)) == len(WORDS) == len(IDS)
    assert 70 <= len(WORDS) <= 80


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=30))
def test_the_tokenizer_agrees_with_encode_and_decodes_to_the_same_words(words):
    ids = TOKENIZER(" ".join(words))["input_ids"]
    assert ids == encode(words)
    assert TOKENIZER.decode(ids).split() == words


def test_a_tokenizer_saved_with_its_model_is_the_same(tmp_path):
    from transformers import AutoTokenizer

    save(untrained(0), tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == IDS
    assert loaded.eos_token == EOS
    assert loaded(" ".join(WORDS))["input_ids"] == encode(list(WORDS))


def test_the_chat_template_writes_a_problem_as_in_the_documents():
    messages = [{"role": "user", "content": "7 +5 *3 -8 ?"}, {"role": "assistant", "content": "so 8"}]
    text = make_tokenizer().apply_chat_template(messages, tokenize=False)
    assert " ".join(text.split()) == "<bos> 7 +5 *3 -8 ? so 8 <eos>"
