import os
import subprocess
import sys
import time

import numpy as np
import pytest
from datasets import Dataset

from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import rendezvous
from qsft.teacher.capture.plan import Plan
from qsft.teacher.capture.rendezvous import Rendezvous
from qsft.teacher.documents import Documents, label_positions
from qsft.teacher.sources import transformers_source
from qsft.teacher.sources.source import Replica

KEYS = np.arange(32, dtype=np.uint8).reshape(2, 16)  # two documents


def test_only_what_is_missing_is_computed_and_in_whole_batches(build, documents, monkeypatch):
    old = documents(200)
    new = [d for d in documents(20, seed=1) if len(label_positions(d["labels"]))]
    build(old)
    computed = []
    compute = transformers_source.teacher_log_probs

    def watched(model, k, **batch):
        computed.append(len(batch["input_ids"]))
        return compute(model, k, **batch)

    monkeypatch.setattr(transformers_source, "teacher_log_probs", watched)
    grown = build([*old, *new])
    assert grown.missing(old + new) == []
    assert sum(computed) == len(new)
    assert len(computed) <= 2 + len(Plan.of(Documents(new), 128).batches)


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """`launch(port, index)`: this process as one of four of a launch, output from other launches by its port."""

    def join(port, index, path=tmp_path, patience=0.0):
        monkeypatch.setenv("MASTER_PORT", str(port))
        return Rendezvous(path, Replica(index, 4), patience)

    return join


def test_a_node_that_does_not_see_the_first_process_raises_at_the_start(launch, tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous, "ARRIVAL_SECONDS", 0.0)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with launch(1, 0, patience=1.0):
        launch(1, 3).check_shared(KEYS)
        with pytest.raises(ValueError, match=r"process 1 does not see in .*elsewhere.*file system they share.*QSFT"):
            launch(1, 1, path=elsewhere).check_shared(KEYS)
        with pytest.raises(ValueError, match="does not see"):  # another launch's file proves nothing
            launch(2, 1).check_shared(KEYS)
    assert not list(tmp_path.glob("*.tmp"))


def test_a_process_that_has_not_arrived_is_waited_for_longer_than_one_that_fell_silent(launch, monkeypatch):
    """It may still load its student; how long is a matter of its disk."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    with pytest.raises(ValueError, match="process 1 has shown no sign of life for 1800 s"):
        launch(1, 0, patience=60.0).wait_for(KEYS, np.array([1, 1]))
    assert 1800 < clock[0] < 1810
    clock[0] = 0.0
    with pytest.raises(ValueError, match=r"does not see in .* after 1800 s"):
        launch(1, 1, patience=60.0).check_shared(KEYS)


def test_a_process_that_comes_after_the_first_one_has_finished_goes_on(launch, build, documents, monkeypatch):
    """The first process may own all documents of a small data set, and leave before the others look."""
    monkeypatch.setattr(rendezvous, "ARRIVAL_SECONDS", 0.0)
    cache = build(documents(5))
    keys = np.concatenate([shard.keys for shard in cache.shards])
    launch(1, 1, path=cache.path).check_shared(keys)
    with pytest.raises(ValueError, match="does not see"):
        launch(1, 1, path=cache.path).check_shared(np.concatenate([keys, KEYS]))


def test_two_launches_in_one_directory_do_not_hide_each_other(launch):
    with launch(1, 0, patience=1.0), launch(2, 0, patience=1.0):
        for port in (1, 2):
            launch(port, 3).check_shared(KEYS)


def test_what_a_killed_process_left_is_removed_after_an_hour(launch, build, documents, tmp_path):
    (tmp_path / "cache").mkdir()
    launch(1, 0, path=tmp_path / "cache")._beat(0)
    [left] = (tmp_path / "cache").iterdir()
    os.utime(left, (0, 0))
    build(documents(5))
    assert not left.exists()


def test_one_process_never_waits(build, documents, tmp_path, monkeypatch):
    """A shard that disappears during the capture is an error at once, not after a time-out."""
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited"))
    publish = rendezvous.published_shards

    def one_was_removed(path):
        publish(path)[0].unlink()
        return publish(path)

    monkeypatch.setattr(rendezvous, "published_shards", one_was_removed)
    with pytest.raises(ValueError, match="a shard was removed meanwhile"):
        build(documents(20))


def test_a_process_whose_heartbeat_stops_is_noticed_by_the_observers_own_clock(launch, tmp_path, monkeypatch):
    """No modification time is read: the file of the silent process is dated in the future."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    other = launch(1, 1, patience=60.0)
    other._beat(7)
    os.utime(other._heartbeat_file(1), (2**33, 2**33))
    with pytest.raises(ValueError, match="process 1 has shown no sign of life for 60 s"):
        launch(1, 0, patience=60.0).wait_for(KEYS, np.array([1, 1]))
    assert 60 < clock[0] < 70


def test_a_running_process_is_waited_for_without_limit_and_with_growing_pauses(launch, monkeypatch):
    """Its documents arrive after an hour; a look every five seconds is enough."""
    clock = [0.0]
    looks = []
    other = launch(1, 1)

    def sleep(seconds):
        clock[0] += seconds
        other._beat(int(clock[0]))

    class OneKey:
        def __init__(self, name):
            self.keys = [memoryview(bytes(16))]

    def published_shards(path):
        looks.append(clock[0])
        return ["shard"] if clock[0] > 3_600 else []

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(rendezvous, "published_shards", published_shards)
    monkeypatch.setattr(rendezvous, "Shard", OneKey)
    launch(1, 0, patience=60.0).wait_for(np.zeros((1, 16), np.uint8), np.array([1]))
    assert 3_600 < clock[0] < 3_610
    assert len(looks) < 3_600 / 4


@pytest.mark.slow  # that two processes write what one writes is proved by forks in test_capture.py
@pytest.mark.distributed
def test_torchrun_divides_a_capture_over_processes(tmp_path, documents, teacher, build, content):
    data = documents(60)
    Dataset.from_list(data).save_to_disk(tmp_path / "data")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "qsft"]
    words = ["cache", "build", "--dataset_path", tmp_path / "data", "--teacher", teacher]
    words += ["--output_dir", tmp_path / "two", "--top_k", 8, "--batch_tokens", 128]
    done = subprocess.run([*launcher, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    two = TeacherCache(tmp_path / "two")
    assert len(two.shards) == 2  # one of each process
    assert content(two, data) == content(build(data, "one"), data)
    assert two.verify().ok
