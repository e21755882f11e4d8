import copy

import numpy as np
import pytest
import torch

from qsft.explore.observe import read_document
from qsft.losses.head import attach_target_head
from qsft.losses.sums import QUADRANTS, SUM_NAMES
from qsft.targets.registry import make_target
from qsft.targets.target import LossTarget
from qsft.targets.view import TokenView
from qsft.teacher.live import LiveTeacher


@pytest.fixture
def dense(student, documents, cache):
    """Everything about the first document, from full logits and the document itself."""
    ids, labels = (torch.tensor(documents[0][name]) for name in ("input_ids", "labels"))
    with torch.no_grad():
        logits = student(input_ids=ids[None]).logits[0]
    at = [t for t in range(1, len(ids)) if labels[t] != -100]
    log_probs = cache.lookup(ids, labels).to(torch.device("cpu"), torch.float32)
    view = TokenView.of(logits[[t - 1 for t in at]].float(), ids[at], log_probs)
    return at, view


@pytest.mark.parametrize("name", ["sft", "dft", "target_sft", "kd_hybrid", "asft", "gem"])
def test_observations_agree_with_full_logits(name, student, documents, cache, dense):
    at, view = dense
    target = make_target(name)
    seen = read_document(student, documents[0], target, cache)
    assert seen.positions.tolist() == at
    p = view.logits.softmax(dim=-1)
    assert np.allclose(seen.p, p.gather(-1, view.labels[:, None])[:, 0], atol=1e-5)
    assert np.allclose(seen.t, view.teacher.label_logp.exp(), atol=1e-5)
    q = target(view)
    q_y = q.dense(p).gather(-1, view.labels[:, None])[:, 0]
    assert np.allclose(seen.q, q_y, atol=1e-5)
    assert np.allclose(seen.gamma, q.gamma, atol=1e-5)
    assert np.allclose(seen.gradient, q.scale * (torch.from_numpy(seen.p) - q_y), atol=1e-5)


def test_a_weight_per_document_is_filled_in(student, documents, cache, dense):
    at, view = dense
    seen = read_document(student, documents[0], make_target("iw_sft"), cache)
    assert seen.positions.tolist() == at
    assert np.allclose(seen.p, view.label_logp.exp(), atol=1e-5)
    weight = min(np.exp(np.mean(np.log(seen.p) - np.log(seen.t))), 16.0)
    assert np.allclose(seen.gradient, weight * (seen.p - 1.0), rtol=1e-3)


def test_alternatives_are_the_likeliest_of_both(student, documents, cache, dense):
    _, view = dense
    seen = read_document(student, documents[0], make_target("target_sft"), cache, top=3)
    p = view.logits.softmax(dim=-1)
    for i in range(len(seen.p)):
        assert seen.alternatives.ids[i, :3].tolist() == p[i].topk(3).indices.tolist()
        assert seen.alternatives.ids[i, 3:].tolist() == view.teacher.ids[i, :3].tolist()
        assert np.allclose(seen.alternatives.t[i, 3:], view.teacher.logps[i, :3].exp(), atol=1e-5)
        outside = [j for j in range(3) if seen.alternatives.ids[i, j] not in view.teacher.ids[i]]
        assert np.isnan(seen.alternatives.t[i, outside]).all()


def test_quadrants_count_as_training_counts_them(student, documents, cache):
    attach_target_head(student)
    mine = dict.fromkeys(QUADRANTS, 0)
    logged = dict.fromkeys(QUADRANTS, 0)
    for document in documents:
        seen = read_document(student, document, make_target("target_sft"), cache)
        ids, labels = (torch.tensor([document[name]]) for name in ("input_ids", "labels"))
        log_probs = cache.lookup(document["input_ids"], document["labels"])
        with torch.no_grad():
            sums = student(input_ids=ids, labels=labels, target=make_target("target_sft"), teacher=log_probs).sums
        for i, name in enumerate(QUADRANTS):
            mine[name] += int((seen.quadrant == i).sum())
            logged[name] += int(sums[SUM_NAMES.index(name)])
    assert mine == logged
    assert all(mine.values()), f"the documents should show every quadrant, not {mine}"


def test_a_live_teacher_and_none(student, documents):
    live = read_document(
        student, documents[0], make_target("target_sft"), LiveTeacher(student, k=student.config.vocab_size)
    )
    assert np.allclose(live.p, live.t, atol=1e-5)
    assert (read_document(student, documents[0], make_target("dft")).quadrant == -1).all()


def test_the_models_mode_is_left_as_it_was(student, documents, cache):
    student.train()
    read_document(student, documents[0], make_target("target_sft"), cache)
    assert student.training
    student.eval()


def test_a_users_loss_is_observed_as_its_induced_target(student, documents):
    def half(logits, labels):
        return 0.5 * torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    seen = read_document(student, documents[0], LossTarget(half))
    assert np.allclose(seen.gradient, 0.5 * (seen.p - 1.0), atol=1e-5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_student_whose_logits_are_not_finite_is_an_error(student, documents, cache, value):
    broken = copy.deepcopy(student)
    with torch.no_grad():
        broken.model.norm.weight[3] = value
    with pytest.raises(ValueError, match="the student's logits are NaN or infinite"):
        read_document(broken, documents[0], make_target("target_sft"), cache)
