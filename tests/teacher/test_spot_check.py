import pytest

from qsft.teacher.capture import build_cache
from qsft.teacher.documents import document_key
from qsft.teacher.verify import aligned, compare_with_teacher, sample_documents


@pytest.mark.parametrize("encoding", ["exact", "compact"])
def test_a_sound_cache_is_the_teacher_at_shift_zero_only(build, documents, tiny_model, encoding):
    cache = build(documents(30), encoding=encoding)
    table = compare_with_teacher(cache, tiny_model(), sample_documents(cache, 5))
    before, here, after = table
    assert (before.shift, here.shift, after.shift) == (-1, 0, 1)
    assert here.kl < 1e-4
    assert here.top1 > 0.95
    for other in (before, after):
        assert other.kl > 100 * here.kl
        assert other.top1 < 0.5
    assert aligned(table, 0.02)
    assert not aligned(table, 1e-12)


@pytest.mark.parametrize("off_by", [-1, 1])
def test_an_off_by_one_shows(tmp_path, documents, tiny_model, tiny_tokenizer, monkeypatch, off_by):
    from qsft.teacher import capture as module

    rows = module.top_rows

    def shifted(model, k, input_ids, **batch):
        # The state that predicts token t is taken from one position before or after.
        return rows(model, k, input_ids=input_ids.roll(off_by, dims=1), **batch)

    monkeypatch.setattr(module, "top_rows", shifted)
    cache = build_cache(
        documents(20), tiny_model(), tmp_path / "off", tokenizer=tiny_tokenizer, k=8, progress=False, batch_tokens=1
    )
    table = compare_with_teacher(cache, tiny_model(), sample_documents(cache, 8))
    assert not aligned(table, 0.02)


def test_another_teacher_shows(build, documents, tiny_model):
    cache = build(documents(20))
    table = compare_with_teacher(cache, tiny_model(seed=1), sample_documents(cache, 5))
    assert not aligned(table, 0.02)


def test_samples_are_documents_of_the_cache(build, documents):
    data = documents(40)
    cache = build(data)
    samples = sample_documents(cache, 8)
    assert len(samples) == 8
    assert all(document_key(*document) in cache for document in samples)
    assert len({document_key(*document) for document in samples}) == 8
