import os
import subprocess
import sys
import time

import pytest
from datasets import Dataset

from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import capture, plan, rendezvous
from qsft.teacher.documents import Documents, label_positions


@pytest.fixture
def launch(monkeypatch):
    """`launch(port, rank)`: this process is one of four that a launcher started, told from others by its port."""

    def become(port, rank):
        for name, value in {"WORLD_SIZE": 4, "MASTER_ADDR": "node0", "MASTER_PORT": port, "RANK": rank}.items():
            monkeypatch.setenv(name, str(value))

    return become


def test_only_what_is_missing_is_computed_and_in_whole_batches(build, documents, monkeypatch):
    old, new = documents(200), [d for d in documents(20, seed=1) if len(label_positions(d["labels"]))]
    build(old)
    computed, rows = [], capture.teacher_log_probs

    def watched(model, k, **batch):
        computed.append(len(batch["input_ids"]))
        return rows(model, k, **batch)

    monkeypatch.setattr(capture, "teacher_log_probs", watched)
    grown = build([*old, *new])
    assert grown.missing(old + new) == []
    assert sum(computed) == len(new)
    assert len(computed) <= 2 + len(plan.Plan(Documents(new), 128).batches)


def test_a_second_launch_in_the_directory_does_not_hide_the_first(launch, tmp_path):
    launch(port=1, rank=0)
    rendezvous.require_shared(tmp_path, patience=0)
    launch(port=2, rank=0)
    rendezvous.require_shared(tmp_path, patience=0)
    for port in (1, 2):
        launch(port, rank=3)  # it needed longer to start
        rendezvous.require_shared(tmp_path, patience=0)


def test_what_a_launch_left_is_tidied_after_an_hour(launch, build, documents, tmp_path):
    (tmp_path / "cache").mkdir()
    launch(port=1, rank=0)
    rendezvous.require_shared(tmp_path / "cache", patience=0)
    [left] = (tmp_path / "cache").iterdir()
    os.utime(left, (0, 0))
    os.environ["WORLD_SIZE"] = "1"
    build(documents(5))
    assert not left.exists()


def test_waiting_processes_back_off_also_while_shards_arrive(tmp_path, monkeypatch):
    """63 others publish about a shard a second: a look every five seconds sees them all the same."""
    clock, looks = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    class OneKey:
        def __init__(self, name):
            self.keys = [memoryview(name.encode())]

    def published(path):
        looks.append(clock[0])
        return [f"shard {second}" for second in range(min(int(clock[0]), 600))]

    monkeypatch.setattr(rendezvous, "published", published)
    monkeypatch.setattr(rendezvous, "Shard", OneKey)
    outstanding = {f"shard {second}".encode() for second in range(600)}
    rendezvous.wait_for_others(tmp_path, outstanding, patience=30)
    assert 600 <= clock[0] < 610
    assert len(looks) < 140
    with pytest.raises(ValueError, match=r"1 documents .* did not come from the other processes within 30 s"):
        rendezvous.wait_for_others(tmp_path, {b"of a dead process"}, patience=30)


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
