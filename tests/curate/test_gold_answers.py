"""Gold answers: read from columns, structs, boxes and the user's function."""

import json

import pytest

from qsft.curate.gold_answers import make_gold_finder

ROW = {"prompt": "1 + 2 ?", "info": {"gold": "3"}, "answer": " "}
RESPONSE = "first 1 + 2 = 3 so \\boxed{3}"


@pytest.mark.parametrize(
    ("gold", "found"), [("info.gold", "3"), ("boxed", "3"), ("answer", None), ("json:dumps", json.dumps(ROW))]
)
def test_the_gold_answer_of_a_row(gold, found):
    find_gold = make_gold_finder(["answer", "info.gold"], gold)
    assert find_gold(ROW, RESPONSE) == found


def test_the_usual_columns_are_found_by_their_names():
    assert make_gold_finder(["prompt", "answer"], None)({"answer": "3"}, None) == "3"


def test_without_a_gold_answer_the_columns_are_named():
    with pytest.raises(ValueError, match=r"among the columns prompt, completion.*--gold"):
        make_gold_finder(["prompt", "completion"], None)
    with pytest.raises(ValueError, match="no column 'result'"):
        make_gold_finder(["answer"], "result")
