"""Row formats: an exercise has the prompt that training would see, and a row with another response is read back."""

import pytest

from qsft.curate.row_formats import ROW_FORMATS, find_row_reader, read_pair
from qsft.data.prompts import document, response_ids

QUESTION = "1 + 2 ?"
RESPONSE = "first 1 + 2 = 3 so \\boxed{3}"
OTHER_RESPONSE = "swap 2 + 1 = 3 so \\boxed{3}"


def reader_of(columns, tokenizer, question=None, response=None):
    return find_row_reader(
        list(columns), tokenizer, question_column=question, response_column=response, preset="question"
    )


@pytest.fixture(params=["pairs", "messages", "turns", "text", "tokens"])
def reader_and_row(request, clock_tokenizer):
    """The reader of a format, and a row of it."""
    prompt = clock_tokenizer(f"<|bos|> {QUESTION}", add_special_tokens=False)["input_ids"]
    user = {"role": "user", "content": QUESTION}
    assistant = {"role": "assistant", "content": RESPONSE}
    row = {
        "pairs": {"question": QUESTION, "response": RESPONSE},
        "messages": {"messages": [user, assistant]},
        "turns": {"prompt": [user], "completion": [assistant]},
        "text": {"prompt": f"<|bos|> {QUESTION}", "completion": f" {RESPONSE}"},
        "tokens": document(prompt, response_ids(clock_tokenizer, RESPONSE)),
    }[request.param]
    return reader_of(row, clock_tokenizer), row


def test_a_row_with_another_response_reads_back(reader_and_row, clock_tokenizer):
    read_row, row = reader_and_row
    exercise = read_row(row)
    assert QUESTION in exercise.question
    assert exercise.response.strip() == RESPONSE
    prompt = exercise.encode_question(exercise.question)
    assert clock_tokenizer.decode(prompt).split() == f"<|bos|> {QUESTION}".split()
    rewritten = exercise.with_response(OTHER_RESPONSE, "sample").row
    again = read_row(rewritten)
    assert again.response.strip() == OTHER_RESPONSE
    assert again.encode_question(again.question) == prompt
    assert exercise.with_demonstration().row == {**row, "curated": "demonstration"}
    if "prompt" in row and isinstance(row["prompt"], str):
        assert rewritten["completion"] == f" {OTHER_RESPONSE}"  # the space after the prompt is kept


def test_another_question_takes_the_place_of_the_rows_own(reader_and_row, clock_tokenizer):
    read_row, row = reader_and_row
    exercise = read_row(row)
    prompt = clock_tokenizer.decode(exercise.encode_template("{question} tip 3"))
    assert prompt.split() == f"<|bos|> {QUESTION} tip 3".split()


def test_pairs_are_written_as_two_columns(clock_tokenizer):
    row = {"q": QUESTION, "a": RESPONSE, "x": 1}
    exercise = read_pair(clock_tokenizer, lambda row: (row["q"], row["a"]), "question", row)
    assert exercise.demonstration == {"question": QUESTION, "response": RESPONSE}


def test_the_columns_decide_the_format(clock_tokenizer):
    for row_format in ROW_FORMATS:
        assert reader_of(row_format.columns, clock_tokenizer).func is row_format.read
    exercise = reader_of(["problem", "solution"], clock_tokenizer)({"problem": "p", "solution": "s"})
    assert (exercise.format, exercise.question, exercise.response) == ("pairs", "p", "s")


@pytest.mark.parametrize(("given", "message"), [({}, "none of them is a question"), ({"question": "q"}, "no 'q'")])
def test_unknown_columns_are_named(given, message, clock_tokenizer):
    with pytest.raises(ValueError, match=message) as error:
        reader_of(["text", "url"], clock_tokenizer, **given)
    assert "text, url" in str(error.value)
