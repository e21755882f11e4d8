import json
import os
import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from qsft.fingerprints import digest
from qsft.teacher.cache import TeacherCache
from qsft.teacher.format.encoding import TopKArrays
from qsft.teacher.format.manifest import MANIFEST, create_manifest
from qsft.teacher.format.shards import (
    DamagedShard,
    EncodedDocument,
    Shard,
    ShardBuilder,
    ShardStatistics,
    UnusableShard,
    checksum,
    published_shards,
)
from qsft.teacher.identity import Identity
from qsft.teacher.verify import verify_cache

FLIPS = 80


@pytest.mark.parametrize("encoding", ["exact", "compact"])
def test_any_flipped_byte_is_detected(build, documents, content, tiny_tokenizer, encoding):
    data = documents(6, longest=8)
    cache = build(data, cache_encoding=encoding, top_k=4, shard_bytes=1, batch_tokens=16)
    expected = content(cache, data)
    files = sorted(cache.path.iterdir())
    assert len(files) > 3
    assert verify_cache(cache.path).ok
    rng = np.random.default_rng(0)
    for path in rng.choice(files, FLIPS):
        raw = path.read_bytes()
        place = int(rng.integers(len(raw)))
        bit = 1 << int(rng.integers(8))
        path.write_bytes(raw[:place] + bytes([raw[place] ^ bit]) + raw[place + 1 :])
        report = verify_cache(cache.path)
        assert path.name in report.problems, f"byte {place} of {path.name} xor {bit}"
        assert (
            noticed_before_training(cache.path, data, tiny_tokenizer)
            or content(TeacherCache(cache.path), data) == expected
        )
        path.write_bytes(raw)
    assert verify_cache(cache.path).ok


def noticed_before_training(path, data, tokenizer):
    """What training does before its first step; a flip in bytes it does not read may pass."""
    try:
        cache = TeacherCache(path)
        cache.check_student(tokenizer)
        return bool(cache.missing(data))
    except ValueError:
        return True


def test_a_flip_in_what_training_reads_is_noticed_by_the_pre_flight(build, documents):
    data = documents(6)
    cache = build(data)
    [path] = published_shards(cache.path)
    raw = bytearray(path.read_bytes())
    payload = load_file(path)["payload"].tobytes()
    start = raw.index(payload)
    for place in range(start, start + len(payload), 37):
        raw[place] ^= 4
        path.write_bytes(raw)
        with pytest.raises(DamagedShard, match=f"{path.name}.*--drop.*only what is lost"):
            TeacherCache(cache.path).missing(data)
        with pytest.raises(DamagedShard, match="checksum"):
            [TeacherCache(cache.path).lookup(**document) for document in data]
        raw[place] ^= 4


@pytest.mark.parametrize("size", [0, 7, 8, 100, -1, "missing"])
def test_a_truncated_shard_is_named_dropped_and_rebuilt_alone(build, documents, content, size):
    data = documents(60)
    cache = build(data, shard_bytes=1)
    expected = content(cache, data)
    shards = published_shards(cache.path)
    victim = shards[0]
    others = {path: path.stat().st_mtime_ns for path in shards[1:]}
    lost = len(Shard(victim))
    if size == "missing":
        victim.unlink()
    else:
        victim.write_bytes(victim.read_bytes()[:size])
    with pytest.raises(ValueError, match=f"{victim.name}.*qsft cache verify"):
        TeacherCache(cache.path)
    with pytest.raises(ValueError, match=victim.name):
        build(data)
    report = verify_cache(cache.path)
    assert list(report.problems) == [victim.name]
    assert report.drop() == len(cache) - lost
    rebuilt = build(data)
    assert content(rebuilt, data) == expected
    assert {path: path.stat().st_mtime_ns for path in others} == others


def test_damaged_manifest_and_vocabulary_are_restored(build, documents, content):
    data = documents(10)
    cache = build(data)
    expected = content(cache, data)
    for name in (MANIFEST, "vocabulary.json"):
        (cache.path / name).write_bytes(b"{}")
        report = verify_cache(cache.path)
        assert list(report.problems) == [name]
        assert report.drop() == len(cache)
        rebuilt = build(data)
        assert rebuilt.verify().ok
        assert content(rebuilt, data) == expected


def test_a_truncated_shard_of_a_running_capture_is_noticed_too(build, documents):
    cache = build(documents(10))
    (cache.path / MANIFEST).unlink()
    [path] = published_shards(cache.path)
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match="header cannot be read"):
        build(documents(10))


def forge(path, **tensors):
    """A shard with other tensors, under the name its bytes deserve."""
    from safetensors import safe_open

    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    content = save(load_file(path) | tensors, metadata)
    path.unlink()
    forged = path.with_name(digest(content) + ".safetensors")
    forged.write_bytes(content)
    return forged


def test_hostile_indexes_are_rejected_before_anything_is_allocated(build, documents):
    cache = build(documents(10))
    (cache.path / MANIFEST).rename(cache.path / "aside")
    [path] = published_shards(cache.path)
    n = len(Shard(path))
    good = load_file(path)
    huge = np.full(n, 2**31 - 1, np.int32)
    backwards = good["offsets"].copy()
    backwards[1] = backwards[-1] + 1
    forgeries = [
        {"positions": huge},
        {"positions": -huge},
        {"positions": np.zeros(n, np.int32)},
        {"positions": good["positions"].astype(np.int64)},
        {"offsets": good["offsets"][:-1]},
        {"offsets": good["offsets"] + 1},
        {"offsets": backwards},
        {"keys": good["keys"][:, :8]},
        {"keys": good["keys"].ravel()},
        {"keys": np.array(3, np.uint8)},
        {"crc": good["crc"][:-1]},
        {"payload": good["payload"][:-1]},
        {"payload": good["payload"].reshape(1, -1)},
    ]
    for changes in forgeries:
        path = forge(path, **(good | changes))
        with pytest.raises(DamagedShard, match="damaged"):
            Shard(path)


def test_a_shard_that_claims_far_more_than_it_holds_is_rejected_when_it_is_opened(tmp_path):
    """k = 65,535 and no slots: 1,800 bytes that would make a reader allocate 79 MB, and any multiple."""
    identity = Identity({"name": "none"}, {"tokens": 10**6}, 10**6, 65_535, "exact", None, 1, "float32")
    create_manifest(tmp_path, identity)
    builder = ShardBuilder()
    positions = 300
    empty = TopKArrays(
        np.zeros((positions, 1), np.int32), np.full((positions, 1), -np.inf), -np.ones(positions), np.zeros(positions)
    )
    payload = identity.codec().encode(empty)
    document = EncodedDocument(bytes(16), positions, payload, np.zeros((2, positions + 1), np.int32))
    builder.add(document, ShardStatistics(1, positions, len(payload)))
    path = builder.publish(tmp_path, asdict(identity))
    tracemalloc.start()
    with pytest.raises(DamagedShard, match="1800 bytes claim 300 label positions of k=65535 slots"):
        TeacherCache(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
    assert "claim 300 label positions" in verify_cache(tmp_path).problems[path.name]


def test_a_shard_of_another_cache_is_not_called_damaged(build, documents):
    cache = build(documents(5))
    other = build(documents(5), "other", top_k=4)
    [foreign] = published_shards(other.path)
    (cache.path / foreign.name).write_bytes(foreign.read_bytes())
    for open_it in (lambda: TeacherCache(cache.path), lambda: build(documents(6))):
        with pytest.raises(UnusableShard, match=f"{foreign.name}.*describes another capture.*--drop` removes neither"):
            open_it()


def test_a_forged_payload_with_a_right_checksum_is_rejected_by_its_bounds(build, documents):
    data = documents(10)
    cache = build(data)
    [path] = published_shards(cache.path)
    good = load_file(path)
    key = good["keys"][0].tobytes()
    positions = int(good["positions"][0])
    end = int(good["offsets"][1])
    payload = good["payload"].copy()
    crc = good["crc"].copy()
    payload[5 * positions : 14 * positions] = 255  # the ids: 8 slots of 9 bits per label position
    crc[0] = checksum(key, positions, payload[:end])
    forge(path, payload=payload, crc=crc)
    (cache.path / MANIFEST).unlink()
    report = verify_cache(cache.path)
    [(name, why)] = [(name, why) for name, why in report.problems.items() if name != MANIFEST]
    assert "outside the vocabulary" in why
    # Its bytes are as somebody wrote them: no rebuild would bring them back, so it is the user who takes it away.
    assert "--drop leaves it" in why
    assert report.drop() == 0
    assert (cache.path / name).is_file()
    (cache.path / name).unlink()
    assert build(data).verify().ok


def test_a_sound_shard_is_never_dropped_for_a_manifest_that_is_wrong(build, documents, content):
    """Another cache's manifest: shards and manifest disagree, and only the user can say which is out of place."""
    data = documents(20)
    cache = build(data)
    other = build(data, "other", top_k=4)
    expected = content(cache, data)
    right = (cache.path / MANIFEST).read_bytes()
    (cache.path / MANIFEST).write_bytes((other.path / MANIFEST).read_bytes())
    [shard] = published_shards(cache.path)
    report = verify_cache(cache.path)
    assert "is sound, but manifest.json describes another capture" in report.problems[shard.name]
    report.drop()
    assert shard.is_file()
    (cache.path / MANIFEST).write_bytes(right)
    assert content(TeacherCache(cache.path), data) == expected


def test_a_manifest_that_states_a_wrong_size_is_written_anew(build, documents, content):
    data = documents(20)
    cache = build(data)
    expected = content(cache, data)
    entries = {name: entry | {"bytes": entry["bytes"] + 1} for name, entry in cache.manifest.shards.items()}
    (cache.path / MANIFEST).write_bytes(replace(cache.manifest, shards=entries).to_bytes())
    with pytest.raises(ValueError, match="the manifest says"):
        TeacherCache(cache.path)
    report = verify_cache(cache.path)
    assert list(report.problems) == [MANIFEST]
    assert report.drop() == len(cache)
    assert content(TeacherCache(cache.path), data) == expected


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["fifo", "directory"])
def test_what_is_no_file_but_named_like_a_shard_is_named_and_keeps_nobody_waiting(build, documents, make):
    data = documents(5)
    cache = build(data)
    intruder = cache.path / ("f" * 32 + ".safetensors")
    make(intruder)
    for open_it in (lambda: TeacherCache(cache.path), lambda: build(data)):
        with pytest.raises(ValueError, match=f"{intruder.name}.*not a regular file"):
            open_it()
    report = verify_cache(cache.path)
    assert list(report.problems) == [intruder.name]
    assert report.drop() == len(cache)


@pytest.mark.parametrize("encoding", ["exact", "compact"])
def test_one_flipped_bit_in_any_field_is_found(build, documents, encoding):
    cache = build(documents(6), cache_encoding=encoding, top_k=16)
    [path] = published_shards(cache.path)
    raw = path.read_bytes()
    header_size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_size])
    fields = {"header length": (0, 8), "header": (8, 8 + header_size)}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            fields[name] = (8 + header_size + start, 8 + header_size + end)
    assert {"keys", "positions", "offsets", "crc", "payload", "sample_tokens", "sample_offsets"} <= set(fields)
    for name, (start, end) in fields.items():
        for place in {start, (start + end) // 2, end - 1}:
            for bit in (1, 128):
                path.write_bytes(raw[:place] + bytes([raw[place] ^ bit]) + raw[place + 1 :])
                assert path.name in verify_cache(cache.path).problems, f"bit {bit} of byte {place} in {name}"
    path.write_bytes(raw)
    for name in (MANIFEST, "vocabulary.json", "complete.json"):
        content = (cache.path / name).read_bytes()
        for place in range(0, len(content), max(1, len(content) // 20)):
            (cache.path / name).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            assert name in verify_cache(cache.path).problems, f"byte {place} of {name}"
        (cache.path / name).write_bytes(content)
    assert verify_cache(cache.path).ok
