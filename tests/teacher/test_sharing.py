"""Caches that several users and large data share: permissions, sizes, many shards, long documents."""

import os
import stat
import time
import tracemalloc
from dataclasses import asdict

import numpy as np
import pytest
from datasets import Dataset

from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import capture
from qsft.teacher.documents import Documents, label_positions
from qsft.teacher.format import shards
from qsft.teacher.format.encoding import TopKArrays
from qsft.teacher.format.manifest import read_manifest, refresh_manifest
from qsft.teacher.format.shards import (
    DamagedShard,
    EncodedDocument,
    ShardBuilder,
    ShardStatistics,
    published_shards,
)

USERS = (61_001, 61_002)
GROUP = 61_000


def test_files_get_the_permissions_of_their_directory(build, documents, tmp_path):
    """Whatever the umask of the process is."""
    for number, (umask, mode) in enumerate([(0o077, 0o755), (0o000, 0o700), (0o027, 0o770)]):
        directory = tmp_path / f"shared{number}"
        directory.mkdir()
        directory.chmod(mode)
        before = os.umask(umask)
        try:
            build(documents(5), directory.name)
        finally:
            os.umask(before)
        modes = {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()}
        assert modes == {0o600 | (mode & 0o666)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")
def test_two_users_with_different_umasks_share_a_directory(build, documents, content, fork, tmp_path):
    first = documents(10)
    second = documents(10, seed=1)
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, USERS[0], GROUP)
    shared.chmod(0o2770)
    for parent in (tmp_path, *tmp_path.parents):
        if parent != parent.parent and not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH)

    def work_as(user, data, umask):
        def work():
            os.setgroups([GROUP])
            os.setgid(GROUP)
            os.setuid(user)
            os.umask(umask)
            cache = build(data, "shared")
            assert cache.missing(data) == []

        return os.waitpid(fork(work), 0)[1]

    assert work_as(USERS[0], first, 0o077) == 0
    assert work_as(USERS[1], [*first, *second], 0o002) == 0
    assert work_as(USERS[0], [*first, *second, *documents(5, seed=2)], 0o077) == 0
    assert TeacherCache(shared).verify().ok


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_shard_that_another_user_may_not_read_is_not_called_damaged(build, documents, fork, tmp_path, capfd):
    cache = build(documents(5))
    [shard] = published_shards(cache.path)
    shard.chmod(0o600)
    for parent in (cache.path, *cache.path.parents):
        if parent != parent.parent:
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)

    def work():
        os.setgid(GROUP)
        os.setuid(USERS[0])
        with pytest.raises(PermissionError, match=r"cannot be read by this user.*chmod"):
            TeacherCache(cache.path)

    assert os.waitpid(fork(work), 0)[1] == 0, capfd.readouterr().err


def test_a_shard_truncated_in_place_while_in_use_is_named(build, documents):
    """A memory map would end the process with SIGBUS."""
    data = [document for document in documents(40) if len(label_positions(document["labels"]))]
    cache = build(data, batch_tokens=4096)
    [shard] = published_shards(cache.path)
    cache.lookup(**data[0])
    os.truncate(shard, 300)
    with pytest.raises(DamagedShard, match=rf"{shard.name}.*truncated"):
        [cache.lookup(**document) for document in data]


@pytest.mark.parametrize(
    ("count", "open_files"), [(150, 16), pytest.param(1200, shards.OPEN_FILES, marks=pytest.mark.slow)]
)
def test_a_cache_of_more_shards_than_files_may_be_open_is_read(
    build, documents, content, monkeypatch, count, open_files
):
    """The slow one has 300 shards: start, memory, and lookups in random order."""
    monkeypatch.setattr(shards, "OPEN_FILES", open_files)
    data = documents(count, longest=6)
    cache = build(data, shard_bytes=1, batch_tokens=8)
    assert len(cache.shards) > count / 4 > open_files
    before = len(os.listdir("/proc/self/fd"))
    tracemalloc.start()
    opened = TeacherCache(cache.path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    shuffled = [data[i] for i in np.random.default_rng(0).permutation(len(data))]
    assert content(opened, shuffled) == content(TeacherCache(cache.path), shuffled)
    assert len(os.listdir("/proc/self/fd")) - before <= open_files + 1
    assert opened.missing(data) == []


@pytest.mark.slow
def test_a_document_of_100_000_tokens_is_captured_and_looked_up(documents, tiny_tokenizer, tmp_path, tiny_model):
    model = tiny_model(max_position_embeddings=131_072, num_hidden_layers=1)
    # Attention over 100,000 tokens takes minutes on a CPU; what is tested here is the cache.
    model.model.layers[0].self_attn.forward = lambda hidden_states, **kwargs: (hidden_states, None)
    ids = np.random.default_rng(0).integers(7, 320, 100_000)
    document = {"input_ids": ids, "labels": np.where(np.arange(100_000) < 10, -100, ids)}
    for encoding in ("exact", "compact"):
        cache = capture.build_cache(
            [document, *documents(3)],
            model,
            tmp_path / encoding,
            tokenizer=tiny_tokenizer,
            top_k=64,
            cache_encoding=encoding,
            progress=False,
        )
        found = cache.lookup(**document)
        assert found.ids.shape == (99_990, 64)
        assert found.logps.isfinite().all()
        assert cache.verify().ok


def test_a_large_cache_in_the_home_directory_is_announced(build, documents, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    build(documents(10), "small")
    assert "home directory" not in capsys.readouterr().err
    monkeypatch.setattr(capture, "ANNOUNCED_BYTES", 100)
    cache = build(documents(10), "large")
    announced = capsys.readouterr().err
    assert f"GB more in your home directory: {cache.path}. Set teacher_cache or" in announced
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    build(documents(10), "outside")
    assert "home directory" not in capsys.readouterr().err


def test_a_path_that_is_too_long_is_named(build, documents):
    name = "x" * 5000
    with pytest.raises(OSError, match=r"has 50\d\d characters, which is too long"):
        build(documents(3), name)
    with pytest.raises(ValueError, match=r"has 5000 characters, which is too long"):
        TeacherCache(name)


@pytest.mark.slow
def test_a_million_documents_in_300_shards(build, documents, tiny_tokenizer, tell):
    """Start, memory and lookups; the shards are written as a capture does, with invented log-probs."""
    count = 1_000_000
    per_shard = 3_300
    rng = np.random.default_rng(0)
    ids = rng.integers(7, 320, (count, 6), dtype=np.int32)
    ids[:, :3] = np.stack(np.unravel_index(np.arange(count), (100, 100, 100)), axis=1) + 7  # no two alike
    labels = ids.copy()
    labels[:, :4] = -100
    data = Dataset.from_dict({"input_ids": ids, "labels": labels})
    read = Documents(data)
    path = build(documents(3), top_k=4).path
    identity = read_manifest(path).identity
    teacher = TopKArrays(
        ids=np.array([[9, 8, 7, 6]] * 2, np.int32),
        logps=np.log(np.array([[0.5, 0.2, 0.1, 0.05]] * 2, np.float32)),
        label_logp=np.log(np.array([0.2, 0.1], np.float32)),
        log_tail=np.log(np.array([0.15, 0.15], np.float32)),
    )
    payload = identity.codec().encode(teacher)
    statistics = ShardStatistics.of_document(teacher, payload)
    keys = read.overview.keys
    for start in range(0, count, per_shard):
        builder = ShardBuilder()
        for i in range(start, min(start + per_shard, count)):
            builder.add(EncodedDocument(keys[i].tobytes(), 2, payload, np.stack([ids[i], labels[i]])), statistics)
        builder.publish(path, asdict(identity))
    refresh_manifest(path)

    tracemalloc.start()
    began = time.monotonic()
    cache = TeacherCache(path)
    opened = time.monotonic() - began
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    began = time.monotonic()
    assert cache.missing(Documents(data)) == []
    searched = time.monotonic() - began
    began = time.monotonic()
    assert TeacherCache(path).missing(Documents(data), check=False) == []
    again = time.monotonic() - began
    assert len(cache.shards) > count / per_shard
    assert len(cache) >= count
    assert kept < 100 * count
    assert peak < 200 * count
    for i in rng.integers(0, count, 3000).tolist():
        assert cache.lookup(ids[i], labels[i]).ids.tolist() == teacher.ids.tolist()
    tell(
        f"{len(cache):,} documents in {len(cache.shards)} shards: opened in {opened:.1f} s with {kept / 1e6:.0f} MB, "
        f"{peak / 1e6:.0f} MB at most; all looked up and read in {searched:.1f} s; a second start takes {again:.1f} s"
    )
