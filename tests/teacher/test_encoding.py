from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qsft.teacher.format.encoding import (
    ENCODINGS,
    FIRST_SLOTS,
    LOWEST,
    Compact,
    Exact,
    TopKArrays,
    bytes_per_label_token,
    canonical,
    truncate,
)
from qsft.teacher.format.shards import encoding_kl

QWEN = 151_936


@st.composite
def random_log_probs(draw):
    """TopKArrays of any k, vocabulary and length, with empty slots anywhere and log-probs of any size."""
    vocab_size = draw(st.sampled_from([2, 3, 255, 256, 257, 1000, 65_536, 65_537, QWEN, 152_064, 2**24 + 1]))
    k = draw(st.integers(1, min(300, vocab_size)))
    n = draw(st.integers(0, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logps = -rng.exponential(draw(st.sampled_from([1e-6, 0.1, 3.0, 20.0, 3000.0])), (n, k)).astype(np.float32)
    logps[rng.random((n, k)) < draw(st.sampled_from([0.0, 0.3, 1.0]))] = -np.inf
    label_logp = -rng.exponential(2.0, n).astype(np.float32)
    label_logp[rng.random(n) < 0.1] = -np.inf
    log_tail = np.where(rng.random(n) < 0.1, -np.inf, -rng.exponential(9.0, n)).astype(np.float32)
    return vocab_size, k, TopKArrays(rng.integers(0, vocab_size, (n, k)).astype(np.int32), logps, label_logp, log_tail)


@cache
def mixed_log_probs(n, vocab_size=QWEN, k=64, seed=0):
    """Top-k log-probs of distributions as peaked as a language model's, from nearly certain to nearly flat."""
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((n, vocab_size)).astype(np.float32) * rng.uniform(1, 4, (n, 1)).astype(np.float32)
    z[np.arange(n)[:, None], rng.integers(0, vocab_size, (n, 6))] += rng.exponential(5, (n, 6)).astype(np.float32) + 8
    z -= z.max(axis=1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    ids = np.argpartition(-z, k, axis=1)[:, :k]
    rest = z.astype(np.float64)
    np.put_along_axis(rest, ids, -np.inf, 1)
    tail = np.log(np.exp(rest).sum(axis=1))
    return canonical(TopKArrays(ids.astype(np.int32), np.take_along_axis(z, ids, 1), z[:, 0], tail))


def decoded(codec, log_probs):
    return codec.decode(np.frombuffer(codec.encode(log_probs), np.uint8), len(log_probs.label_logp))


@given(random_log_probs())
@settings(max_examples=60, deadline=None)
def test_exact_round_trip_is_fp16_of_the_log_probs(sample):
    vocab_size, k, log_probs = sample
    out = decoded(Exact(k, vocab_size), log_probs)
    expected = canonical(log_probs)
    live = expected.logps > -np.inf
    assert (out.ids[live] == expected.ids[live]).all()
    assert out.logps.dtype == np.float16
    assert (out.logps == expected.logps.astype(np.float16)).all()
    assert (out.label_logp == expected.label_logp.astype(np.float16)).all()
    assert (out.log_tail == expected.log_tail.astype(np.float16)).all()


@given(random_log_probs())
@settings(max_examples=60, deadline=None)
def test_compact_keeps_ids_and_the_first_slots_and_is_within_half_a_step(sample):
    vocab_size, k, log_probs = sample
    out = decoded(Compact(k, vocab_size), log_probs)
    expected = canonical(log_probs)
    live = expected.logps > -np.inf
    assert (out.ids[live] == expected.ids[live]).all()
    assert out.logps.dtype == np.float32
    assert ((out.logps > -np.inf) == live).all()
    assert (out.log_tail == expected.log_tail.astype(np.float16)).all()
    first_live = live[:, :FIRST_SLOTS]
    first = out.logps[:, :FIRST_SLOTS][first_live]
    first_expected = expected.logps[:, :FIRST_SLOTS][first_live]
    assert (np.abs(first - first_expected) <= np.maximum(2.0**-15, 2.0**-12 * np.abs(first_expected))).all()
    assert (np.diff(np.where(live, out.logps, -1e9), axis=1) <= 0).all()  # sorted, as they were
    if k > FIRST_SLOTS:
        finite = np.where(live, expected.logps, 0.0)
        gaps = np.where(live[:, FIRST_SLOTS:], finite[:, FIRST_SLOTS - 1 : -1] - finite[:, FIRST_SLOTS:], 0.0)
        # of the slot from which differences are counted
        rounding = np.maximum(2.0**-15, 2.0**-12 * np.abs(finite[:, FIRST_SLOTS - 1]))
        step = (gaps.max(axis=1) + rounding) / 254 * 1.002 + 1e-7
        allowed = (step / 2 + rounding + 1e-6 + 1e-6 * np.abs(finite).max(axis=1))[:, None]
        error = np.abs(np.where(live, out.logps, 0.0) - finite)[:, FIRST_SLOTS:]
        assert (error <= allowed).all()


@given(random_log_probs())
@settings(max_examples=25, deadline=None)
def test_encoding_a_decoded_exact_payload_changes_nothing(sample):
    vocab_size, k, log_probs = sample
    codec = Exact(k, vocab_size)
    payload = codec.encode(log_probs)
    assert codec.encode(codec.decode(np.frombuffer(payload, np.uint8), len(log_probs.label_logp))) == payload


def test_compact_is_small_and_close_at_k_64_of_qwens_vocabulary():
    log_probs = mixed_log_probs(50)
    for codec, most_bytes, most_kl in ((Compact(64, QWEN), 227, 2e-8), (Exact(64, QWEN), 277, 1e-7)):
        size = len(codec.encode(log_probs)) / len(log_probs.label_logp)
        kl = encoding_kl(log_probs, decoded(codec, log_probs)).mean()
        print(f"{type(codec).__name__}: {size} bytes per label token, KL {kl:.2e}")
        assert size <= most_bytes
        assert 0 <= kl <= most_kl


def test_compact_is_close_where_likely_tokens_end_in_a_large_gap():
    """Ten digits that are about equally likely, and far below them all other tokens: usual in numbers and dates."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200, 2000))
    z[:, :10] += rng.uniform(6, 12, (200, 1))
    z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    order = np.argsort(-z, axis=1)
    z = np.take_along_axis(z, order, 1)
    tail = np.log(np.exp(z[:, 64:]).sum(axis=1))
    log_probs = canonical(TopKArrays(order[:, :64].astype(np.int32), z[:, :64], z[:, 0], tail))
    assert encoding_kl(log_probs, decoded(Compact(64, 2000), log_probs)).mean() < 1e-7


def test_top_p_costs_in_proportion_to_mean_k():
    log_probs = mixed_log_probs(50)
    short = truncate(log_probs, 0.99, min_k=1)
    mean_k = (short.logps > -np.inf).sum() / 50
    assert 1 < mean_k < 50
    for name, codec in ((name, kind(64, QWEN)) for name, kind in ENCODINGS.items()):
        size = len(codec.encode(short)) / 50
        assert size == pytest.approx(bytes_per_label_token(name, 64, QWEN) * mean_k / 64, rel=0.25)


@given(st.floats(0.01, 1.0), st.integers(1, 8))
@settings(max_examples=25, deadline=None)
def test_truncate_keeps_the_shortest_prefix_with_the_mass(top_p, min_k):
    log_probs = mixed_log_probs(20, vocab_size=500, k=16, seed=3)
    kept = truncate(log_probs, top_p, min_k).logps > -np.inf
    mass = np.exp(log_probs.logps.astype(np.float64))
    for row, count in zip(mass, kept.sum(axis=1)):
        assert count >= min(min_k, 16)
        assert row[:count].sum() >= min(top_p, row.sum()) - 1e-9
        assert count == min_k or row[: count - 1].sum() < top_p


@pytest.mark.parametrize("kind", ENCODINGS.values())
def test_the_tail_survives_rounding(kind):
    """1 − Σ exp(rounded log-probs) is wrong by several percent and more; the stored tail is fp16 of the true one."""
    log_probs = mixed_log_probs(50)
    out = decoded(kind(64, QWEN), log_probs)
    true = np.exp(log_probs.log_tail.astype(np.float64))
    stored = np.exp(out.log_tail.astype(np.float64))
    recovered = 1 - np.exp(out.logps.astype(np.float64)).sum(axis=1)
    assert np.abs(stored / true - 1).max() < 1e-2
    assert np.abs(recovered / true - 1).max() > 0.05


def test_what_top_p_cuts_is_tail():
    log_probs = mixed_log_probs(50)
    short = truncate(log_probs, 0.9, min_k=1)
    mass = np.exp(short.logps.astype(np.float64)).sum(axis=1) + np.exp(short.log_tail)
    np.testing.assert_allclose(mass, 1, atol=1e-5)


@pytest.mark.parametrize(("k", "n", "size"), [(65_535, 4_200_000, 4_200_000 * 6), (65_535, 3_000, 3_000 * 6)])
def test_positions_that_would_exhaust_the_memory_are_rejected_before_it_is_allocated(k, n, size):
    codec = Exact(k, QWEN)
    payload = np.broadcast_to(np.zeros(1, np.uint8), size)  # positions without a single slot
    with pytest.raises(ValueError, match=f"claim {n} label positions of k=65535"):
        codec.decode(payload, n)


@pytest.mark.parametrize("kind", ENCODINGS.values())
def test_bytes_that_cannot_be_a_payload_are_rejected(kind):
    codec = kind(8, 300)
    log_probs = mixed_log_probs(3, vocab_size=300, k=8)
    payload = np.frombuffer(codec.encode(log_probs), np.uint8)
    for wrong in (payload[:-1], np.append(payload, np.uint8(0)), payload[:0]):
        with pytest.raises(ValueError, match="document"):
            codec.decode(wrong, 3)
    too_many = payload.copy()
    too_many[0] = 9
    with pytest.raises(ValueError, match="claims 9 slots"):
        codec.decode(too_many, 3)
    smaller = kind(8, int(log_probs.ids.max()))  # same number of bits, one id too large
    with pytest.raises(ValueError, match="outside the vocabulary"):
        smaller.decode(payload, 3)


def test_nan_is_never_encoded():
    log_probs = TopKArrays(np.zeros((1, 2), np.int32), np.array([[0.0, np.nan]]), np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="NaN"):
        Exact(2, 10).encode(log_probs)


@pytest.mark.parametrize("kind", ENCODINGS.values())
@pytest.mark.parametrize(
    ("bits", "is_logp"),
    [
        (0x0000, True),
        (0x8000, True),
        (0xFC00, True),
        (0x3C00, False),
        (0x7E00, False),
        (0xFC01, False),
        (0xFFFF, False),
    ],
)
def test_of_all_halves_only_those_of_a_log_prob_are_read(kind, bits, is_logp):
    """±0 and −inf are; 1.0 and both signs of NaN are not."""
    codec = kind(8, 300)
    payload = np.frombuffer(codec.encode(mixed_log_probs(3, vocab_size=300, k=8)), np.uint8).copy()
    payload[3:5] = np.frombuffer(np.uint16(bits).tobytes(), np.uint8)  # the first label's, behind three counts
    if is_logp:
        assert codec.decode(payload, 3).label_logp.view(np.uint16)[0] == bits
    else:
        with pytest.raises(ValueError, match="log-prob above 0 or NaN"):
            codec.decode(payload, 3)


def test_a_slot_below_the_lowest_log_prob_stays_a_slot():
    """Twelve slots at −65,504 and a step of 1: the thirteenth lies below the lowest log-prob, which is not −inf."""
    counts = bytes([13])
    label_and_tail = np.array([-1.0, -2.0], "<f2").tobytes()
    ids = bytes(range(13))
    first = np.array([30 << 11 | 2046] * 12, "<u2").tobytes()  # 2^15·(1 + 2046/2048)
    step = np.array([1.0], "<f2").tobytes()
    payload = counts + label_and_tail + ids + first + step + bytes([255])
    log_probs = Compact(13, 256).decode(np.frombuffer(payload, np.uint8), 1)
    assert log_probs.ids.tolist() == [list(range(13))]
    assert log_probs.logps[0].tolist() == [LOWEST] * 13


def test_certainty_is_exact_in_compact():
    logps = np.array([[0.0, -1e-6, -40.0]])
    log_probs = decoded(Compact(3, 256), TopKArrays(np.arange(3)[None], logps, np.zeros(1), np.full(1, -np.inf)))
    assert log_probs.logps.tolist() == [[0.0, 0.0, -40.0]]
    assert not np.signbit(log_probs.logps[0, 0])


def test_a_step_that_is_not_finite_is_rejected():
    codec = Compact(9, 256)
    log_probs = TopKArrays(np.arange(9)[None], -np.arange(9.0)[None], -np.ones(1), -np.ones(1))
    payload = bytearray(codec.encode(log_probs))
    start = 1 + 4 + 9 + 18
    for bits in (0x7C00, 0x7E00, 0xBC00):  # infinity, NaN, −1
        payload[start : start + 2] = np.uint16(bits).tobytes()
        with pytest.raises(ValueError, match="negative or infinite step"):
            codec.decode(np.frombuffer(payload, np.uint8), 1)
