"""Forms: what is read is what training would see; what is rewritten reads back."""

import json

import pytest

from qsft.curate.exercises import find_gold, read_exercises
from qsft.curate.forms import FORMS, Messages, Pairs, PromptCompletion, Tokens, document, find_form, response_ids

QUESTION, RESPONSE, OTHER = "1 + 2 ?", "first 1 + 2 = 3 so \\boxed{3}", "swap 2 + 1 = 3 so \\boxed{3}"


def rows_and_forms(tokenizer):
    prompt = tokenizer(f"<|bos|> {QUESTION}", add_special_tokens=False)["input_ids"]
    user, assistant = {"role": "user", "content": QUESTION}, {"role": "assistant", "content": RESPONSE}
    return {
        "pairs": (Pairs(tokenizer, lambda row: (row["q"], row["a"])), {"q": QUESTION, "a": RESPONSE}),
        "messages": (Messages(tokenizer), {"messages": [user, assistant]}),
        "turns": (PromptCompletion(tokenizer), {"prompt": [user], "completion": [assistant]}),
        "text": (PromptCompletion(tokenizer), {"prompt": f"<|bos|> {QUESTION}", "completion": f" {RESPONSE}"}),
        "tokens": (Tokens(tokenizer), document(prompt, response_ids(tokenizer, RESPONSE))),
    }


NAMES = ("pairs", "messages", "turns", "text", "tokens")


@pytest.mark.parametrize("name", NAMES)
def test_reads_and_rewrites(name, clock_tokenizer):
    form, row = rows_and_forms(clock_tokenizer)[name]
    question, response = form.read(row)
    assert QUESTION in question
    assert response.strip() == RESPONSE
    assert clock_tokenizer.decode(form.prompt(row, question)).split() == f"<|bos|> {QUESTION}".split()
    again = form.rewrite(row, OTHER)
    reader = Pairs(clock_tokenizer, lambda row: (row["question"], row["response"])) if name == "pairs" else form
    assert reader.read(again)[1].strip() == OTHER
    assert reader.prompt(again, reader.read(again)[0]) == form.prompt(row, question)
    assert reader.read(form.keep(row))[1] == response


@pytest.mark.parametrize("name", NAMES)
def test_asks_another_question(name, clock_tokenizer):
    form, row = rows_and_forms(clock_tokenizer)[name]
    question = form.read(row)[0]
    told = clock_tokenizer.decode(form.prompt(row, f"{question} tip 3"))
    assert told.split() == f"<|bos|> {QUESTION} tip 3".split()


def test_text_keeps_the_gap_between_prompt_and_completion(clock_tokenizer):
    form, row = rows_and_forms(clock_tokenizer)["text"]
    assert form.rewrite(row, OTHER)["completion"] == f" {OTHER}"


def test_finds_the_form_by_the_columns(clock_tokenizer):
    for form, columns in FORMS.items():
        assert type(find_form([*columns], clock_tokenizer, question=None, response=None, ask="question")) is form
    found = find_form(["problem", "solution"], clock_tokenizer, question=None, response=None, ask="question")
    assert found.read({"problem": "p", "solution": "s"}) == ("p", "s")


@pytest.mark.parametrize(("given", "message"), [({}, "none of them is a question"), ({"question": "q"}, "no 'q'")])
def test_unknown_columns_are_named(given, message, clock_tokenizer):
    settings = {"question": None, "response": None, **given}
    with pytest.raises(ValueError, match=message) as error:
        find_form(["text", "url"], clock_tokenizer, **settings, ask="question")
    assert "text, url" in str(error.value)


def test_no_gold_answer_names_the_columns():
    with pytest.raises(ValueError, match="prompt, completion") as error:
        find_gold(["prompt", "completion"], None)
    assert "--gold" in str(error.value)
    with pytest.raises(ValueError, match="'result'"):
        find_gold(["answer"], "result")
    assert find_gold(["prompt", "answer"], None)({"answer": "3"}, None) == "3"


def test_golds_of_columns_structs_and_boxes(clock_tokenizer):
    form = PromptCompletion(clock_tokenizer)
    row = {"prompt": QUESTION, "completion": RESPONSE, "info": {"gold": "3"}, "answer": " "}
    one = lambda gold: read_exercises([row], form, find_gold(["answer", "info.gold"], gold))[0].gold  # noqa: E731
    assert one("info.gold") == one("boxed") == "3"
    assert one("answer") is None
    assert one("json:dumps") == json.dumps(row)


def test_repeated_prompts_have_names_of_their_own(clock_tokenizer):
    rows = [{"prompt": QUESTION, "completion": RESPONSE}, {"prompt": QUESTION, "completion": OTHER}]
    first, second = read_exercises(rows, PromptCompletion(clock_tokenizer), find_gold([], "boxed"))
    assert first.id != second.id
    assert first.digest == second.digest


def test_options_of_a_question(clock_exercises):
    exercise = clock_exercises([(1, 2)], prompt="Which?\nA. one\nB) two\n(C) three", answer="B")[0]
    assert exercise.options == {"A": "one", "B": "two", "C": "three"}
    assert clock_exercises([(1, 2)])[0].options is None
