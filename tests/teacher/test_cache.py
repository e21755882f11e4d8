import copy
import json
import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset, load_from_disk
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from qsft.fingerprints import digest
from qsft.targets.view import TopK
from qsft.teacher.cache import TeacherCache
from qsft.teacher.documents import Documents, document_key, label_positions
from qsft.teacher.format.manifest import MANIFEST, create_manifest, render_json
from qsft.teacher.identity import Identity

TOKENS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1, max_size=20)


@given(TOKENS)
def test_a_key_does_not_depend_on_container_dtype_or_first_label(tokens):
    ids = [token for token, _ in tokens]
    labels = [token if labeled else -100 for token, labeled in tokens]
    key = document_key(ids, labels)
    assert len(key) == 16
    assert key == document_key(np.array(ids), np.array(labels, np.int32))
    assert key == document_key(torch.tensor(ids), torch.tensor(labels))
    assert key == document_key(ids, [-100, *labels[1:]]) == document_key(ids, [ids[0], *labels[1:]])


def test_a_key_depends_on_every_token_and_label():
    ids = [5, 6, 7, 8]
    keys = {document_key(ids, ids), document_key(ids, [5, -100, 7, 8]), document_key([5, 6, 7, 9], ids)}
    keys |= {document_key(ids[:3], ids[:3]), document_key([6, 5, 7, 8], ids)}
    assert len(keys) == 5


@pytest.mark.parametrize("beyond", [2**31, 5 + 2**32, -(2**31) - 1])
def test_ids_beyond_32_bits_are_rejected_and_never_wrap_to_another_documents_key(beyond, build):
    ids = [5, beyond, 7]
    for make in (list, np.array, torch.tensor):
        with pytest.raises(ValueError, match=f"token id {beyond}, which no model has"):
            document_key(make(ids), make([5, 5, 7]))
    for data in (
        [{"input_ids": ids, "labels": [5, 5, 7]}],
        Dataset.from_dict({"input_ids": [ids], "labels": [[5] * 3]}),
    ):
        with pytest.raises(ValueError, match=f"token id {beyond}"):
            build(data)


@pytest.mark.parametrize("labels", [[1, 2], [[1, 2, 3]], [0.5, 1.0, 2.0]])
def test_what_is_not_a_document_has_no_key(labels):
    with pytest.raises(ValueError, match="document"):
        document_key([1, 2, 3], labels)


def test_label_positions_leave_out_the_first_token():
    assert label_positions([7, -100, 8, 9]).tolist() == [2, 3]
    assert label_positions([7]).tolist() == label_positions([]).tolist() == []


@pytest.mark.parametrize("encoding", ["exact", "compact"])
def test_log_probs_are_the_live_teachers_at_the_label_positions(build, documents, tiny_model, encoding):
    data = documents(30)
    model = tiny_model()
    cache = build(data, cache_encoding=encoding, top_k=16)
    for document in data:
        log_probs = cache.lookup(**document)
        positions = label_positions(document["labels"])
        with torch.no_grad():
            live = model(torch.tensor([document["input_ids"]])).logits[0].log_softmax(-1)[positions - 1]
        tokens = torch.tensor(document["labels"])[positions]
        step = 2e-3
        torch.testing.assert_close(log_probs.logps.float(), live.topk(16).values, atol=step, rtol=1e-3)
        torch.testing.assert_close(log_probs.logps.float(), live.gather(1, log_probs.ids.long()), atol=step, rtol=1e-3)
        torch.testing.assert_close(
            log_probs.label_logp.float(), live.gather(1, tokens[:, None])[:, 0], atol=2e-3, rtol=1e-3
        )
        assert (log_probs.ids.dtype, log_probs.label_logp.dtype, log_probs.log_tail.dtype) == (
            torch.int32,
            torch.float16,
            torch.float16,
        )
        assert log_probs.logps.dtype == cache.logps_dtype == (torch.float16 if encoding == "exact" else torch.float32)


def test_the_stored_tail_is_the_live_teachers(build, documents, tiny_model):
    data = documents(30)
    model = tiny_model()
    for encoding in ("exact", "compact"):
        cache = build(data, encoding, cache_encoding=encoding, top_k=16)
        for document in data:
            log_probs = cache.lookup(**document)
            positions = label_positions(document["labels"])
            with torch.no_grad():
                live = model(torch.tensor([document["input_ids"]])).logits[0].double().log_softmax(-1)[positions - 1]
            tail = live.scatter(1, log_probs.ids.long(), -torch.inf).logsumexp(-1)
            torch.testing.assert_close(log_probs.log_tail.double(), tail, atol=2e-3, rtol=1e-3)
            assert log_probs.log_tail.dtype == torch.float16
        assert 0 < cache.manifest.measured["encoding_tail_error"] < 2e-3


def test_a_second_start_makes_no_pass_over_the_data(build, documents, tmp_path, monkeypatch):
    Dataset.from_list(documents(40)).save_to_disk(tmp_path / "data")
    cache = build(load_from_disk(tmp_path / "data"))

    def no_pass(self, order):
        raise AssertionError("the data were read")

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "_groups", no_pass)
        build(load_from_disk(tmp_path / "data"))
        assert TeacherCache(cache.path).missing(Documents(load_from_disk(tmp_path / "data")), check=False) == []
        with pytest.raises(AssertionError, match="were read"):
            build(load_from_disk(tmp_path / "data").select(range(39)))


def test_a_data_set_that_was_noted_as_complete_is_so_only_while_its_shards_exist(build, documents):
    data = Documents(documents(40))
    cache = build(data, shard_bytes=1)
    assert cache.is_complete(data)
    assert cache.is_complete(Documents(documents(40)))  # found by content, without a file
    assert not cache.is_complete(Documents(documents(40)[::-1]))
    assert not cache.is_complete(Documents(documents(41)))
    grown = build(documents(20, seed=1), shard_bytes=1)
    assert grown.is_complete(data)
    cache.shards[0].path.unlink()
    grown.verify().drop()
    left = TeacherCache(cache.path)
    assert not left.is_complete(data)
    assert left.missing(data, check=False)


def test_a_damaged_note_of_complete_data_is_ignored_and_named(build, documents):
    data = documents(5)
    cache = build(data)
    for raw in (b"", b"{}", b"[" * 100_000, b'{"complete": [], "stamps": 3}', b"\xff"):
        (cache.path / "complete.json").write_bytes(raw)
        assert not cache.is_complete(Documents(data))
        assert list(cache.verify().problems) == ["complete.json"]
        assert build(data).verify().ok


def test_a_document_is_found_by_its_content(build, documents):
    data = documents(20)
    cache = build([*data, *data[:5]])
    stored = [d for d in data if len(label_positions(d["labels"]))]
    assert len(cache) == len(stored)
    assert all(document in cache for document in data)
    assert document_key(**stored[0]) in cache
    other = {"input_ids": [1, 2, 3], "labels": [1, 2, 3]}
    assert other not in cache
    assert cache.missing([other, *data, other]) == [0, 21]
    with pytest.raises(ValueError, match="not in the teacher cache"):
        cache.lookup(**other)


def test_a_document_without_labels_is_legal_and_never_stored(build):
    bare = {"input_ids": [4, 5, 6], "labels": [4, -100, -100]}
    cache = build([bare, {"input_ids": [1, 2], "labels": [1, 2]}])
    assert len(cache) == 1
    assert bare in cache
    assert cache.missing([bare]) == []
    log_probs = cache.lookup(**bare)
    assert log_probs.ids.shape == log_probs.logps.shape == (0, 8)
    assert log_probs.label_logp.shape == (0,)


def test_positions_of_different_length_are_padded_with_empty_slots(build, documents):
    data = documents(10)
    full = build(data, "full", top_k=32)
    short = build(data, "short", top_k=32, top_p=0.3, min_k=2)
    counts = torch.cat([short.lookup(**d).live.sum(dim=1) for d in data])
    assert counts.min() >= 2
    assert counts.min() < counts.max()
    for document in data:
        a = full.lookup(**document)
        b = short.lookup(**document)
        assert a.ids.shape == b.ids.shape
        assert torch.equal(a.logps[b.live], b.logps[b.live])
        assert torch.equal(a.ids[b.live], b.ids[b.live])
    assert short.manifest.measured["mean_k"] == pytest.approx(counts.float().mean().item(), abs=1e-3)


def test_it_pickles_as_its_path(build, documents, content):
    data = documents(5)
    cache = build(data)
    assert len(pickle.dumps(cache)) < 500
    assert content(pickle.loads(pickle.dumps(cache)), data) == content(cache, data)


@pytest.mark.slow  # a spawned worker imports everything anew; that the cache crosses as its path is proved above
def test_spawned_dataloader_workers_read_it(build, documents, content):
    data = documents(6)
    cache = build(data)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=1, multiprocessing_context="spawn", collate_fn=Lookup(cache)
    )
    assert [ids.tolist() for ids in loader] == [cache.lookup(**d).ids.tolist() for d in data]


class Lookup:
    def __init__(self, cache):
        self.cache = cache

    def __call__(self, document):
        return self.cache.lookup(**document).ids


def test_a_student_with_another_tokenizer_is_rejected_by_its_first_differing_token(build, documents, tiny_tokenizer):
    cache = build(documents(3))
    cache.check_student(tiny_tokenizer, vocab_size=320)
    other = json.loads(tiny_tokenizer.backend_tokenizer.to_str())
    words = other["model"]["vocab"]
    words["other"] = words.pop("w9")
    renamed = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(other)))
    with pytest.raises(ValueError, match=f"id {words['other']} is 'w9' there and 'other' here"):
        cache.check_student(renamed)


def test_one_added_pad_in_a_tokenizer_is_no_difference(build, documents, tiny_model, tiny_tokenizer, tmp_path):
    """Agreement on the ids both have suffices, as long as no document uses another one."""
    longer = copy.deepcopy(tiny_tokenizer)
    longer.add_tokens(["<new>"])
    cache = build(documents(3))
    cache.check_student(longer, vocab_size=320)
    build(documents(5), tokenizer=longer)
    tiny_model(vocab_size=384).save_pretrained(tmp_path / "teacher")
    tiny_tokenizer.save_pretrained(tmp_path / "teacher")
    build(documents(3), "other", teacher=tmp_path / "teacher", tokenizer=longer)
    for document in ({"input_ids": [5, 320, 6], "labels": [5, 6, 6]}, {"input_ids": [5, 6], "labels": [5, 320]}):
        with pytest.raises(ValueError, match="uses the token id 320, which was added"):
            build([document], "other", teacher=tmp_path / "teacher", tokenizer=longer)


def test_added_tokens_need_no_entry_in_the_students_head(build, documents, tiny_tokenizer):
    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.add_tokens(["<image>"])
    cache = build(documents(3), tokenizer=tokenizer)
    cache.check_student(tokenizer, vocab_size=320)
    cache.check_student(vocab_size=320)
    with pytest.raises(ValueError, match="319 entries, but the tokenizer has 320"):
        cache.check_student(tokenizer, vocab_size=319)


def test_heads_may_differ_in_padding_entries_only(build, documents, tiny_model):
    data = documents(10)
    cache = build(data, teacher=tiny_model(vocab_size=384), top_k=64)
    cache.check_student(vocab_size=320)
    cache.check_student(vocab_size=512)
    with pytest.raises(ValueError, match="319 entries"):
        cache.check_student(vocab_size=319)
    log_probs = cache.lookup(**data[0])
    assert (log_probs.ids >= 320).any()
    kept = TopK(log_probs.ids, log_probs.logps.float()).within(320)
    assert (kept.ids < 320).all()
    lost = torch.where(log_probs.ids >= 320, log_probs.logps.float(), -torch.inf).exp().sum(dim=1)
    inside = torch.where(log_probs.ids < 320, log_probs.logps.float(), -torch.inf).exp().sum(dim=1)
    torch.testing.assert_close(kept.logps.exp().sum(dim=1), inside / (1 - lost), rtol=1e-4, atol=1e-5)


def forge(path, **changes):
    """Rewrite a manifest with other content and a checksum that matches it."""
    content = json.loads(path.read_bytes())
    content.pop("checksum")
    for name, value in changes.items():
        target = content
        *parents, last = name.split("__")
        for parent in parents:
            target = target[parent]
        target[last] = value
    path.write_bytes(render_json(content | {"checksum": digest(render_json(content))}))


NAME = "0" * 32 + ".safetensors"


def nested(levels):
    return [nested(levels - 1)] if levels else 0


FORGED = [
    ({"version": 2}, "format version 2; .* or remove the directory and build the cache again"),
    ({"version": True}, "format version True"),
    ({"format": "something"}, "does not describe"),
    ({"identity__top_k": -1}, "top_k=-1"),
    ({"identity__top_k": 10**9}, "k=1000000000"),
    ({"identity__top_k": True}, "k=True"),
    ({"identity__vocab_size": 10**18}, "vocab_size=1000000000000000000"),
    ({"identity__cache_encoding": "pickle"}, "encoding='pickle'"),
    ({"identity__cache_encoding": ["exact"]}, "encoding="),
    ({"identity__top_p": 7}, "top_p=7"),
    ({"identity__tokenizer": {}}, "tokens"),
    ({"identity__teacher": {"name": 3}}, "no name"),
    ({"identity__teacher": {"name": "a", "revision": ["b"]}}, "revision"),
    ({"identity__teacher": {"name": "a", "deep": nested(300)}}, "deeply nested"),
    ({"identity__dtype": None}, "dtype=None"),
    ({"measured": {"bytes": "many"}}, "not a number"),
    ({"libraries": {"torch": 3}}, "not a string"),
    ({"identity": []}, "identity"),
    ({"identity__extra": 1}, "identity"),
    ({"shards": {"../../etc/passwd": {"documents": 1, "label_tokens": 1, "bytes": 1}}}, "not the name of a shard"),
    ({"shards": {"/tmp/" + NAME: {"documents": 1, "label_tokens": 1, "bytes": 1}}}, "not the name of a shard"),
    ({"shards": {NAME: {"documents": 1, "label_tokens": 1, "bytes": 1}}}, "missing"),
    ({"shards": {NAME: {"documents": -1, "label_tokens": 1, "bytes": 1}}}, "impossible sizes"),
    ({"shards": {NAME: {"documents": 1, "label_tokens": 1, "bytes": 2**60}}}, "impossible sizes"),
    ({"shards": {NAME: None}}, "impossible sizes"),
    ({"shards": 3}, "must be objects"),
    ({"identity__cache_encoding": "compact"}, "another capture"),
    ({"identity__top_k": 7}, "another capture"),
]


def test_a_forged_manifest_is_rejected(build, documents):
    path = build(documents(3)).path / MANIFEST
    original = path.read_bytes()
    sizes = {name: entry | {"bytes": entry["bytes"] + 1} for name, entry in json.loads(original)["shards"].items()}
    for changes, words in [*FORGED, ({"shards": sizes}, "the manifest says")]:
        path.write_bytes(original)
        forge(path, **changes)
        with pytest.raises(ValueError, match=words):
            TeacherCache(path.parent)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[1]", b'"qsft"', b"1" * 5000])
def test_a_manifest_that_is_none_is_rejected(tmp_path, raw):
    (tmp_path / MANIFEST).write_bytes(raw)
    with pytest.raises(ValueError, match=MANIFEST):
        TeacherCache(tmp_path)


def test_a_teacher_whose_name_is_no_utf8_is_written_and_read(tmp_path):
    identity = Identity({"name": "caf\udce9"}, {"tokens": 5}, 5, 2, "exact", None, 1, "float32")
    assert create_manifest(tmp_path, identity).identity == identity == TeacherCache(tmp_path).manifest.identity


def test_a_directory_that_is_not_a_cache_is_named(tmp_path):
    with pytest.raises(ValueError, match="it has no manifest"):
        TeacherCache(tmp_path)


def test_an_edited_manifest_is_noticed(build, documents):
    cache = build(documents(3))
    raw = (cache.path / MANIFEST).read_bytes()
    (cache.path / MANIFEST).write_bytes(raw.replace(b'"python": "', b'"python": "9'))
    with pytest.raises(ValueError, match="altered"):
        TeacherCache(cache.path)
