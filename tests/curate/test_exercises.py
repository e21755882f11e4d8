"""Exercises: what is read is what training would see; what is rewritten reads back."""

import json

import pytest

from qsft.curate.exercises import FORMS, find_form, find_gold, pairs, read_exercises
from qsft.data.prompts import document, response_ids

QUESTION, RESPONSE, OTHER = "1 + 2 ?", "first 1 + 2 = 3 so \\boxed{3}", "swap 2 + 1 = 3 so \\boxed{3}"


def form_of(columns, tokenizer, question=None, response=None):
    return find_form(list(columns), tokenizer, question=question, response=response, prompt="question")


@pytest.fixture(params=["pairs", "messages", "turns", "text", "tokens"])
def form_and_row(request, clock_tokenizer):
    prompt = clock_tokenizer(f"<|bos|> {QUESTION}", add_special_tokens=False)["input_ids"]
    user, assistant = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": RESPONSE}
    row = {
        "pairs": {"question": QUESTION, "response": RESPONSE},
        "messages": {"messages": [user, assistant]},
        "turns": {"prompt": [user], "completion": [assistant]},
        "text": {"prompt": f"<|bos|> {QUESTION}", "completion": f" {RESPONSE}"},
        "tokens": document(prompt, response_ids(clock_tokenizer, RESPONSE)),
    }[request.param]
    return form_of(row, clock_tokenizer), row


def test_opens_and_rewrites(form_and_row, clock_tokenizer):
    form, row = form_and_row
    opened = form(row)
    assert QUESTION in opened.question
    assert opened.response.strip() == RESPONSE
    prompt = opened.ask(opened.question)
    assert clock_tokenizer.decode(prompt).split() == f"<|bos|> {QUESTION}".split()
    rewritten = opened.kept(OTHER, "sample").row
    again = form(rewritten)
    assert again.response.strip() == OTHER
    assert again.ask(again.question) == prompt
    assert opened.kept(None, "demonstration").row == {**row, "curated": "demonstration"}
    if "prompt" in row and isinstance(row["prompt"], str):
        assert rewritten["completion"] == f" {OTHER}"  # the gap between prompt and completion is kept


def test_asks_another_question(form_and_row, clock_tokenizer):
    form, row = form_and_row
    opened = form(row)
    told = clock_tokenizer.decode(opened.ask(f"{opened.question} tip 3"))
    assert told.split() == f"<|bos|> {QUESTION} tip 3".split()


def test_pairs_are_written_as_two_columns(clock_tokenizer):
    opened = pairs(
        clock_tokenizer, lambda row: (row["q"], row["a"]), "question", {"q": QUESTION, "a": RESPONSE, "x": 1}
    )
    assert opened.own == {"question": QUESTION, "response": RESPONSE}


def test_finds_the_form_by_the_columns(clock_tokenizer):
    for form, columns in FORMS.items():
        assert form_of(columns, clock_tokenizer).func is form
    found = form_of(["problem", "solution"], clock_tokenizer)({"problem": "p", "solution": "s"})
    assert (found.form, found.question, found.response) == ("pairs", "p", "s")


@pytest.mark.parametrize(("given", "message"), [({}, "none of them is a question"), ({"question": "q"}, "no 'q'")])
def test_unknown_columns_are_named(given, message, clock_tokenizer):
    with pytest.raises(ValueError, match=message) as error:
        form_of(["text", "url"], clock_tokenizer, **given)
    assert "text, url" in str(error.value)


def test_no_gold_answer_names_the_columns():
    with pytest.raises(ValueError, match="prompt, completion") as error:
        find_gold(["prompt", "completion"], None)
    assert "--gold" in str(error.value)
    with pytest.raises(ValueError, match="'result'"):
        find_gold(["answer"], "result")
    assert find_gold(["prompt", "answer"], None)({"answer": "3"}, None) == "3"


def test_golds_of_columns_structs_and_boxes(clock_tokenizer):
    form = form_of(["prompt"], clock_tokenizer)
    row = {"prompt": QUESTION, "completion": RESPONSE, "info": {"gold": "3"}, "answer": " "}
    one = lambda gold: read_exercises([row], form, find_gold(["answer", "info.gold"], gold))[0].gold  # noqa: E731
    assert one("info.gold") == one("boxed") == "3"
    assert one("answer") is None
    assert one("json:dumps") == json.dumps(row)


def test_repeated_prompts_have_names_of_their_own(clock_tokenizer):
    rows = [{"prompt": QUESTION, "completion": RESPONSE}, {"prompt": QUESTION, "completion": OTHER}]
    first, second = read_exercises(rows, form_of(["prompt"], clock_tokenizer), find_gold([], "boxed"))
    assert first.id != second.id
    assert first.digest == second.digest


def test_options_of_a_question(clock_exercises):
    exercise = clock_exercises([(1, 2)], prompt="Which?\nA. one\nB) two\n(C) three", answer="B")[0]
    assert exercise.options == {"A": "one", "B": "two", "C": "three"}
    assert clock_exercises([(1, 2)])[0].options is None
