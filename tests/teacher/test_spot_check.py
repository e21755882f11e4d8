import pytest

from qsft.teacher.capture.capture import build_cache
from qsft.teacher.documents import document_key
from qsft.teacher.spot_check import compare_with_teacher, sample_documents


@pytest.mark.parametrize("encoding", ["exact", "compact"])
def test_a_sound_cache_is_the_teacher_at_shift_zero_only(build, documents, tiny_model, encoding):
    cache = build(documents(30), cache_encoding=encoding)
    check = compare_with_teacher(cache, tiny_model(), sample_documents(cache, 5))
    before, here, after = check.table
    assert (before.shift, here.shift, after.shift) == (-1, 0, 1)
    assert here.kl < 1e-4
    assert here.top1 > 0.95
    for other in (before, after):
        assert other.kl > 100 * here.kl
        assert other.top1 < 0.5
    assert check.is_aligned(0.02)
    assert not check.is_aligned(1e-12)
    assert check.undetected_share == pytest.approx(1 - 0.05**0.2)


@pytest.mark.parametrize("off_by", [-1, 1])
def test_an_off_by_one_shows(tmp_path, documents, tiny_model, tiny_tokenizer, monkeypatch, off_by):
    from qsft.teacher.sources import transformers_source as module

    compute = module.teacher_log_probs

    def shifted(model, k, input_ids, **batch):
        # The state that predicts token t is taken from one position before or after.
        return compute(model, k, input_ids=input_ids.roll(off_by, dims=1), **batch)

    monkeypatch.setattr(module, "teacher_log_probs", shifted)
    cache = build_cache(
        documents(20), tiny_model(), tmp_path / "off", tokenizer=tiny_tokenizer, top_k=8, progress=False, batch_tokens=1
    )
    assert not compare_with_teacher(cache, tiny_model(), sample_documents(cache, 8)).is_aligned(0.02)


def test_another_teacher_shows(build, documents, tiny_model):
    cache = build(documents(20))
    check = compare_with_teacher(cache, tiny_model(seed=1), sample_documents(cache, 5))
    assert not check.is_aligned(0.02)
    assert check.differing(0.02) == 5


def test_a_few_wrong_documents_do_not_disappear_in_the_mean(build, documents, tiny_model):
    """One shard of another teacher among many: it is in the sample, and it counts by itself."""
    cache = build(documents(60, longest=8), shard_bytes=1, batch_tokens=16)
    samples = sample_documents(cache, len(cache.shards))
    of_shard = [{document_key(*document) for document in shard.sample()} for shard in cache.shards]
    assert all(any(document_key(*document) in keys for document in samples) for keys in of_shard)
    stale = tiny_model(seed=1)
    fresh = tiny_model()
    victim = samples[3][0].tolist()
    forward = fresh.forward
    fresh.forward = lambda input_ids, **kwargs: (
        stale(input_ids, **kwargs) if input_ids[0].tolist() == victim else forward(input_ids=input_ids, **kwargs)
    )
    check = compare_with_teacher(cache, fresh, samples)
    assert check.differing(0.02) == 1
    assert not check.is_aligned(0.02)


def test_a_projection_that_is_wrong_shows_though_it_made_the_cache(build, documents, tiny_model, monkeypatch):
    """The comparison is with the model's own logits: the same wrong projection again would agree with itself."""
    from qsft.losses import head
    from qsft.teacher.sources import transformers_source

    monkeypatch.setattr(head, "projection_of", lambda config: head.Projection(None, 0.5))
    with pytest.raises(ValueError, match="does not know how Qwen2ForCausalLM turns hidden states into logits"):
        build(documents(20))
    monkeypatch.setattr(transformers_source, "check_teacher_head", lambda model, **inputs: None)
    cache = build(documents(20))
    check = compare_with_teacher(cache, tiny_model(), sample_documents(cache, 8))
    assert not check.is_aligned(0.02)


def test_samples_are_documents_of_the_cache(build, documents):
    data = documents(40)
    cache = build(data)
    samples = sample_documents(cache, 8)
    assert len(samples) == 8
    assert all(document_key(*document) in cache for document in samples)
    assert len({document_key(*document) for document in samples}) == 8
