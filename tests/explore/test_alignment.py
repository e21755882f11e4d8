import json
from itertools import chain

import numpy as np
import pytest

from qsft.explore.alignment import BINS, comparable_targets, measure_alignment
from qsft.explore.alignment_report import alignment_figure, alignment_page, pull_figure, reliability_figure
from qsft.explore.alignment_summary import CAVEAT, in_words
from qsft.explore.observe import read_document
from qsft.losses.sums import QUADRANTS
from qsft.targets.registry import make_target


@pytest.fixture(scope="module")
def data(student, tokenizer, documents, cache):
    return measure_alignment(student, tokenizer, documents, cache)


def test_counts_are_those_of_the_tokens(data, student, documents, cache):
    seen = [read_document(student, document, make_target("sft"), cache) for document in documents]
    p, t = (np.concatenate([getattr(one, name) for one in seen]) for name in ("p", "t"))
    quadrants = np.concatenate([one.quadrant for one in seen])
    assert data["documents"] == len(documents)
    assert data["label_tokens"] == len(p)
    assert data["quadrants"] == {name: int((quadrants == i).sum()) for i, name in enumerate(QUADRANTS)}
    expected, _, _ = np.histogram2d(t, p, bins=BINS, range=[[0, 1], [0, 1]])
    assert np.array(data["histogram"]).tolist() == expected.astype(int).tolist()


def test_what_targets_move(data):
    effects = data["targets"]
    assert set(effects) == set(comparable_targets()) >= {"sft", "dft", "target_sft", "kd"}
    for effect in effects.values():
        assert sum(effect["quadrants"].values()) == pytest.approx(1.0)
    # ½·Σ|p − δ| is 1 − p_y, and DFT weighs it by p_y.
    assert effects["dft"]["moved"] < effects["sft"]["moved"] <= 1.0


def test_sft_moves_one_minus_p(data, student, documents, cache):
    p = np.concatenate([read_document(student, document, make_target("sft"), cache).p for document in documents])
    assert data["targets"]["sft"]["moved"] == pytest.approx((1 - p).mean(), rel=1e-4)
    assert data["targets"]["sft"]["trains_on"] == pytest.approx((1 - p >= 0.05).mean())


def test_frequent_tokens_have_their_count_and_occurrences(data):
    for kind in ("rescue", "filter"):
        counts = [word["count"] for word in data["frequent_tokens"][kind]]
        assert counts == sorted(counts, reverse=True)
        assert all(0 < word["count"] <= word["of"] for word in data["frequent_tokens"][kind])


def test_the_heat_map_is_conditional_on_the_student(data):
    z = np.array(alignment_figure(data).data[0].z, dtype=float)
    filled = np.array(data["histogram"]).sum(axis=0) > 0
    assert np.allclose(np.nansum(z, axis=0)[filled], 1.0, atol=0.01)
    assert np.isnan(z[:, ~filled]).all()
    assert [bar.name for bar in pull_figure(data).data] == ["Q1 rescue", "Q2 filter", "Q3 agree", "Q4 student only"]


def test_reliability_counts_the_teachers_first_choices(data, documents, cache):
    claims = []
    right = []
    for document in documents:
        rows = cache.lookup(document["input_ids"], document["labels"])
        best = rows.logps.argmax(dim=-1)
        first = rows.ids.gather(-1, best[:, None])[:, 0]
        claims += rows.logps.float().max(dim=-1).values.exp().tolist()
        right += (first.numpy() == np.array(document["input_ids"])[3:]).tolist()
    found = data["reliability"]
    index = np.clip((np.array(claims) * BINS).astype(int), 0, BINS - 1)
    bins = np.unique(index)
    assert found["count"] == [int((index == i).sum()) for i in bins]
    assert found["confidence"] == pytest.approx([np.array(claims)[index == i].mean() for i in bins], abs=1e-3)
    assert found["accuracy"] == pytest.approx([np.array(right)[index == i].mean() for i in bins])
    assert sum(found["count"]) == data["label_tokens"]
    excess = [one["excess"] for one in found["overconfident"]]
    assert excess == sorted(excess, reverse=True)
    assert list(reliability_figure(data).data[1].customdata) == found["count"]


def test_the_threshold_moves(student, tokenizer, documents, cache, data):
    strict = measure_alignment(student, tokenizer, documents, cache, high=0.9)
    counts = np.array(data["histogram"])
    assert strict["quadrants"]["agree"] == counts[18:, 18:].sum() < data["quadrants"]["agree"]
    assert strict["high"] == 0.9
    with pytest.raises(ValueError, match="high=1"):
        measure_alignment(student, tokenizer, documents, cache, high=1.0)


def test_a_huge_data_set_is_sampled(student, tokenizer, documents, cache):
    def no_more():
        yield from documents[:3]
        raise AssertionError("a fourth document was read")

    assert measure_alignment(student, tokenizer, no_more(), cache, n=3)["documents"] == 3


def test_without_a_teacher_or_a_label_there_is_nothing_to_compare(student, tokenizer, documents, cache):
    with pytest.raises(ValueError, match="teacher"):
        measure_alignment(student, tokenizer, documents, None)
    unlabeled = [{"input_ids": [6, 7, 8], "labels": [-100] * 3}]
    with pytest.raises(ValueError, match="label token"):
        measure_alignment(student, tokenizer, unlabeled, cache)


def made_up(accuracy=0.96, guided=0.1, **shares):
    quadrants = {"rescue": 0.0, "filter": 0.0, "agree": 0.0, "student_only": 0.0, **shares}
    effect = {"trains_on": 0.5, "moved": 0.4, "quadrants": quadrants}
    weak = {**effect, "moved": 0.1}
    facts = {"label_in_topk": 0.99, "teacher_top1": 0.7, "student_top1": 0.6}
    reliability = {"from": [0.95], "count": [100], "confidence": [0.97], "accuracy": [accuracy], "overconfident": []}
    targets = {"sft": effect, "dft": weak, "target_sft": {**effect, "moved": guided}}
    return {"shares": quadrants, "targets": targets, "reliability": reliability, **facts}


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"agree": 0.95, "filter": 0.05}, "little to learn"),
        ({"filter": 0.6, "agree": 0.4}, "dft 75\N{NO-BREAK SPACE}%, target_sft 75\N{NO-BREAK SPACE}% less"),
        ({"rescue": 0.3, "agree": 0.6, "filter": 0.1}, "Correction is a large part"),
        ({"student_only": 0.3, "agree": 0.7}, "small η"),
    ],
)
def test_the_sentences_follow_the_numbers(shares, words):
    sentences = in_words(made_up(**shares))
    assert words in " ".join(sentences)
    assert sentences[-1] == CAVEAT


def test_target_sft_and_dft_are_compared_by_the_numbers():
    assert "are close" in " ".join(in_words(made_up(agree=1.0, guided=0.11)))
    apart = " ".join(in_words(made_up(agree=1.0, guided=0.3)))
    assert "still differ" in apart
    assert "target_sft moves 0.300" in apart


@pytest.mark.parametrize(("accuracy", "verdict"), [(0.95, "is calibrated"), (0.7, "is overconfident")])
def test_a_sure_teacher_is_calibrated_or_overconfident(accuracy, verdict):
    sentences = " ".join(in_words(made_up(accuracy=accuracy, agree=1.0)))
    assert f"that token is the label {100 * accuracy:.1f}\N{NO-BREAK SPACE}% of the time" in sentences
    assert [word in sentences for word in ("is calibrated", "is overconfident")].count(True) == 1
    assert verdict in sentences


def test_the_page_and_the_json_agree(data):
    html = alignment_page(data)
    shares = json.loads(json.dumps(data, allow_nan=False))["shares"]
    for text in chain((f"{100 * share:.1f} %" for share in shares.values()), in_words(data)):
        assert text.replace("'", "&#x27;") in html
    assert len(html.encode()) < 6e6
