"""Kills at random moments and damage to every file: resumed bit for bit, detected and named, or harmless.

A few of each run always, more in `make test-slow` and most in `make campaign`; their counts are printed.
"""

import os
import shutil
import signal
import time
from collections import Counter

import numpy as np
import pytest
from kills import rounds

from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import rendezvous
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.documents import Documents
from qsft.teacher.format.shards import published_shards
from qsft.teacher.verify import verify_cache


def few_and_many(few, many):
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


@pytest.fixture
def capture(tmp_path, documents, tiny_model, tiny_tokenizer):
    """Capture 150 documents into a directory, a shard per batch; `capture.data` are the documents."""
    data = documents(150)
    model = tiny_model()
    options = {"tokenizer": tiny_tokenizer, "progress": False, "top_k": 8, "batch_tokens": 64, "shard_bytes": 1}

    def run(name, patience=1800.0):
        return build_cache(data, model, tmp_path / name, patience=patience, **options)

    run.data = data
    return run


@few_and_many(2, rounds(short=30, long=200))
@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_capture_killed_at_any_moment_continues_bit_equal(
    count, processes, capture, content, fork, tmp_path, tell, monkeypatch
):
    """SIGKILL of one process of a capture; one that finished before starts again in an empty directory."""
    rng = np.random.default_rng()
    place = tmp_path / "killed"
    monkeypatch.setattr(rendezvous, "ARRIVAL_SECONDS", 1.0)  # a process may be killed before it arrives
    start = time.monotonic()
    expected = content(capture("whole"), capture.data)
    duration = time.monotonic() - start
    outcomes = Counter()
    while outcomes["killed"] < count:
        ranks = [
            fork(lambda: capture("killed", patience=1.0), RANK=str(rank), WORLD_SIZE=str(processes), MASTER_PORT="1")
            for rank in range(processes)
        ]
        time.sleep(rng.uniform(0, duration / 3))
        os.kill(ranks[rng.integers(processes)], signal.SIGKILL)
        statuses = [os.waitpid(child, 0)[1] for child in ranks]
        if any(os.WIFSIGNALED(status) for status in statuses):
            outcomes["killed"] += 1
            outcomes["left no manifest"] += not (place / "manifest.json").exists()
        elif any(statuses):
            outcomes["gave up waiting for the other"] += 1
        else:
            outcomes["finished before its kill"] += 1
            assert content(TeacherCache(place), capture.data) == expected
            shutil.rmtree(place)
        if place.exists():
            assert all(path.is_file() for path in published_shards(place))
    resumed = capture("killed")
    assert content(resumed, capture.data) == expected
    assert resumed.verify().ok
    tell(f"capture on {processes} processes: {dict(outcomes)}, resumed bit-equal")


def flip(raw, rng):
    place = int(rng.integers(len(raw)))
    return raw[:place] + bytes([raw[place] ^ (1 << int(rng.integers(8)))]) + raw[place + 1 :]


def zero(raw, rng):
    start, stop = sorted(rng.integers(0, len(raw) + 1, 2))
    return raw[:start] + bytes(stop - start) + raw[stop:]


def shuffle(raw, rng):
    middle = int(rng.integers(len(raw)))
    return raw[middle:] + raw[:middle]


DAMAGES = {
    "flipped bit": flip,
    "cut": lambda raw, rng: raw[: int(rng.integers(len(raw)))],
    "grown": lambda raw, rng: raw + rng.bytes(int(rng.integers(1, 99))),
    "zeroed range": zero,
    "rotated": shuffle,
    "empty": lambda raw, rng: b"",
    "noise": lambda raw, rng: rng.bytes(len(raw)),
    "deleted": lambda raw, rng: None,
}


@few_and_many(32, rounds(short=800, long=4000))
@pytest.mark.parametrize("encoding", ["exact", "compact"])
def test_damage_to_any_file_is_named_or_harmless(count, encoding, build, documents, content, tiny_tokenizer, tell):
    data = documents(8, longest=8)
    cache = build(data, cache_encoding=encoding, top_k=4, shard_bytes=1, batch_tokens=16)
    expected = content(cache, data)
    files = sorted(cache.path.iterdir())
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    rng = np.random.default_rng()
    outcomes = Counter()
    for number in range(count):
        path = files[number % len(files)]
        (kind, damage) = list(DAMAGES.items())[int(rng.integers(len(DAMAGES)))]
        raw = path.read_bytes()
        harmed = damage(raw, rng)
        if harmed == raw:
            continue
        path.unlink() if harmed is None else path.write_bytes(harmed)
        outcomes[check_damage(cache.path, path, data, expected, content, tiny_tokenizer, kind)] += 1
        if number % 40 == 0:  # what is dropped is computed again, and nothing is lost
            verify_cache(cache.path).drop()
            assert (
                content(build(data, cache_encoding=encoding, top_k=4, shard_bytes=1, batch_tokens=16), data) == expected
            )
            files = sorted(cache.path.iterdir())
        else:
            path.write_bytes(raw)
    assert verify_cache(cache.path).ok
    tell(f"{encoding}: {dict(outcomes)}")
    assert outcomes["named"] > 0.6 * count


def check_damage(directory, path, data, expected, content, tokenizer, kind):
    """named (verify says which file) or harmless (complete.json was deleted); what can still be read is right."""
    report = verify_cache(directory)
    named = path.name in report.problems
    unlisted = kind == "deleted" and path.name == "complete.json"
    assert named or unlisted, f"{kind} of {path.name} was not noticed"
    try:
        cache = TeacherCache(directory)
        cache.check_student(tokenizer)
        readable = not cache.missing(Documents(data))
    except ValueError:
        readable = False
    if readable:
        assert content(TeacherCache(directory), data) == expected
    return "named" if named else "harmless"
