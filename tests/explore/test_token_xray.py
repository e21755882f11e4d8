import itertools
import json
import weakref

import pytest

from qsft.explore import token_xray
from qsft.explore.observe import read_document
from qsft.explore.token_xray import tokens_page, xray
from qsft.losses.sums import QUADRANTS
from qsft.targets.registry import make_target

EVIL = "<script>window.hacked=1</script>"


@pytest.fixture(scope="module")
def data(student, tokenizer, documents, cache):
    return xray(student, tokenizer, documents, make_target("target_sft"), cache, n=5)


def test_the_numbers_are_those_of_the_observations(data, student, documents, cache):
    assert len(data["documents"]) == 5
    for shown, document in zip(data["documents"], documents):
        seen = read_document(student, document, make_target("target_sft"), cache)
        for name in ("p", "t", "gamma", "q", "gradient"):
            assert [token[name] for token in shown["tokens"]] == pytest.approx(getattr(seen, name), rel=1e-3)
        assert shown["quadrants"] == {name: int((seen.quadrant == i).sum()) for i, name in enumerate(QUADRANTS)}
        assert shown["means"]["p"] == pytest.approx(seen.p.mean(), rel=1e-3)


def test_every_alternative_has_a_name_and_none_is_the_label(data):
    for document in data["documents"]:
        for token in document["tokens"]:
            ids = [alternative["token"] for alternative in token["alternatives"]]
            assert len(set(ids)) == len(ids)
            assert token["label"] not in ids
            assert {str(i) for i in (*ids, token["label"])} <= set(data["vocabulary"])


def test_it_is_json_and_counts_add_up(data):
    again = json.loads(json.dumps(data, allow_nan=False))
    kinds = [token["quadrant"] for document in again["documents"] for token in document["tokens"]]
    assert again["quadrants"] == {name: kinds.count(name) for name in QUADRANTS}
    assert again["label_tokens"] == len(kinds)


def test_a_page_holds_no_more_tokens_than_it_can_show(monkeypatch, student, tokenizer, documents, cache):
    monkeypatch.setattr(token_xray, "MOST_TOKENS", 20)
    data = xray(student, tokenizer, documents, make_target("target_sft"), cache)
    assert data["label_tokens"] == 20
    assert data["left_out"] > 0


def test_one_document_is_in_memory_at_a_time(student, tokenizer, documents, cache):
    alive = weakref.WeakSet()
    most = 0

    class Tracked(dict):
        __hash__ = object.__hash__

    def endless():
        nonlocal most
        for number in itertools.count():
            document = Tracked(documents[number % len(documents)])
            alive.add(document)
            most = max(most, len(alive))
            yield document
            del document

    assert len(xray(student, tokenizer, endless(), make_target("target_sft"), cache, n=30)["documents"]) == 30
    assert most <= 2


def test_without_a_teacher_there_is_no_quadrant(student, tokenizer, documents):
    data = xray(student, tokenizer, documents, make_target("dft"), n=2)
    assert set(data["quadrants"].values()) == {0}
    assert all(token["t"] is None and token["quadrant"] is None for token in data["documents"][0]["tokens"])


def test_tokens_that_are_html_are_not_in_the_page_as_html(data):
    html = tokens_page(data)
    assert EVIL not in html
    assert "onerror" not in html
    assert len(html.encode()) < 6e6
