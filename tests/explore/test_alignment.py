import json
from itertools import chain

import numpy as np
import pytest

from qsft.explore.alignment import BINS, comparable_targets, measure_alignment
from qsft.explore.heatmap import alignment_figure, alignment_page, pull_figure
from qsft.explore.probe import look
from qsft.explore.reading import CAVEAT, in_words
from qsft.losses.sums import QUADRANTS
from qsft.targets.zoo import make_target


@pytest.fixture(scope="module")
def data(student, tokenizer, documents, cache):
    return measure_alignment(student, tokenizer, documents, cache)


def test_counts_are_those_of_the_tokens(data, student, documents, cache):
    seen = [look(student, document, make_target("sft"), cache) for document in documents]
    p, t = (np.concatenate([getattr(s, name) for s in seen]) for name in ("p", "t"))
    quadrants = np.concatenate([s.quadrant for s in seen])
    assert data["documents"] == len(documents)
    assert data["label_tokens"] == len(p)
    assert data["quadrants"] == {name: int((quadrants == i).sum()) for i, name in enumerate(QUADRANTS)}
    expected, _, _ = np.histogram2d(t, p, bins=BINS, range=[[0, 1], [0, 1]])
    assert np.array(data["histogram"]).tolist() == expected.astype(int).tolist()


def test_what_targets_move(data):
    effects = data["targets"]
    assert set(effects) == set(comparable_targets()) >= {"sft", "dft", "target", "kd"}
    for effect in effects.values():
        assert sum(effect["quadrants"].values()) == pytest.approx(1.0)
    # ½·Σ|p − δ| is 1 − p_y, and the p-loss weighs it by p_y.
    assert effects["dft"]["moved"] < effects["sft"]["moved"] <= 1.0


def test_sft_moves_one_minus_p(data, student, documents, cache):
    p = np.concatenate([look(student, document, make_target("sft"), cache).p for document in documents])
    assert data["targets"]["sft"]["moved"] == pytest.approx((1 - p).mean(), rel=1e-4)
    assert data["targets"]["sft"]["trains_on"] == pytest.approx((1 - p >= 0.05).mean())


def test_frequent_words_say_how_often_of_how_often(data):
    for kind in ("rescue", "filter"):
        counts = [word["count"] for word in data["words"][kind]]
        assert counts == sorted(counts, reverse=True)
        assert all(0 < word["count"] <= word["of"] for word in data["words"][kind])


def test_the_heat_map_is_conditional_on_the_student(data):
    z = np.array(alignment_figure(data).data[0].z, dtype=float)
    filled = np.array(data["histogram"]).sum(axis=0) > 0
    assert np.allclose(np.nansum(z, axis=0)[filled], 1.0, atol=0.01)
    assert np.isnan(z[:, ~filled]).all()
    assert [bar.name for bar in pull_figure(data).data] == ["rescue", "filter", "agree", "student only"]


def test_a_huge_data_set_is_sampled(student, tokenizer, documents, cache):
    def no_more():
        yield from documents[:3]
        raise AssertionError("a fourth document was read")

    assert measure_alignment(student, tokenizer, no_more(), cache, n=3)["documents"] == 3


def test_without_a_teacher_or_a_label_there_is_nothing_to_compare(student, tokenizer, documents, cache):
    with pytest.raises(ValueError, match="teacher"):
        measure_alignment(student, tokenizer, documents, None)
    unlabelled = [{"input_ids": [6, 7, 8], "labels": [-100] * 3}]
    with pytest.raises(ValueError, match="label token"):
        measure_alignment(student, tokenizer, unlabelled, cache)


def made_up(**shares):
    quadrants = {"rescue": 0.0, "filter": 0.0, "agree": 0.0, "student_only": 0.0, **shares}
    effect = {"trains_on": 0.5, "moved": 0.4, "quadrants": quadrants}
    weak = {**effect, "moved": 0.1}
    facts = {"label_in_topk": 0.99, "teacher_top1": 0.7, "student_top1": 0.6}
    return {"shares": quadrants, "targets": {"sft": effect, "dft": weak}, **facts}


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ({"agree": 0.95, "filter": 0.05}, "little to learn"),
        ({"filter": 0.6, "agree": 0.4}, "dft 75% less"),
        ({"rescue": 0.3, "agree": 0.6, "filter": 0.1}, "Correction is a large part"),
        ({"student_only": 0.3, "agree": 0.7}, "small η"),
    ],
)
def test_the_reading_follows_the_numbers(shares, words):
    sentences = in_words(made_up(**shares))
    assert words in " ".join(sentences)
    assert sentences[-1] == CAVEAT


def test_the_page_and_the_json_say_the_same(data):
    html = alignment_page(data)
    shares = json.loads(json.dumps(data, allow_nan=False))["shares"]
    for text in chain((f"{100 * share:.1f} %" for share in shares.values()), in_words(data)):
        assert text.replace("'", "&#x27;") in html
    assert len(html.encode()) < 6e6
