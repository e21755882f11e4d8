from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qsft.losses import projection
from qsft.teacher.log_probs import teacher_log_probs, top_k


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([1, 4, 16]), st.integers(16, 9000))
@settings(max_examples=60, deadline=None)
def test_top_k_is_torchs(seed, n, k, size):
    logits = torch.randn(n, size, generator=torch.Generator().manual_seed(seed))
    values, ids = top_k(logits, k)
    expected = logits.topk(k)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


def test_top_k_of_equal_logits_names_different_ids():
    values, ids = top_k(torch.zeros(2, 5000), 8)
    assert (values == 0).all()
    assert all(len(set(row)) == 8 for row in ids.tolist())


def test_top_k_does_not_hide_nan():
    logits = torch.randn(3, 5000)
    logits[1, 4321] = torch.nan
    assert top_k(logits, 4)[0].isnan().any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("k", [None, 8])
def test_small_tiles_change_nothing(tiny_model, monkeypatch, k):
    model = tiny_model(vocab_size=5000).eval()
    ids = torch.randint(7, 320, (3, 12))
    compute = partial(teacher_log_probs, model, k)
    whole = compute(input_ids=ids, labels=ids)
    monkeypatch.setattr(projection, "CPU_CHUNK_TOKENS", 5)
    tiled = compute(input_ids=ids, labels=ids)
    torch.testing.assert_close(tiled.logps, whole.logps)
    torch.testing.assert_close(tiled.label_logp, whole.label_logp)
    assert len(whole.logps) == 33


def test_a_bf16_teacher_gives_float32_log_probs(tiny_model):
    model = tiny_model().to(torch.bfloat16).eval()
    ids = torch.randint(7, 320, (2, 9))
    log_probs = teacher_log_probs(model, 320, input_ids=ids, labels=ids)
    assert log_probs.logps.dtype == torch.float32
    torch.testing.assert_close(log_probs.logps.exp().sum(dim=1), torch.ones(16))
    states = model.model(ids).last_hidden_state[:, :-1].reshape(16, -1)
    logits = states.float() @ model.lm_head.weight.float().T  # not rounded to bf16 again
    torch.testing.assert_close(log_probs.logps, logits.log_softmax(-1).gather(1, log_probs.ids.long()))
    rounded = model(ids).logits[:, :-1].reshape(16, -1).float()
    assert (rounded - logits).abs().max() > 1e-3
