import subprocess
import sys

import pytest
from datasets import Dataset

from qsft.teacher.lookup import TeacherCache


@pytest.mark.slow  # that two processes write what one writes is proved by forks in test_capture.py
@pytest.mark.distributed
def test_torchrun_divides_a_capture_over_processes(tmp_path, documents, teacher, build, content):
    data = documents(60)
    Dataset.from_list(data).save_to_disk(tmp_path / "data")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "qsft"]
    words = ["cache", "build", "--dataset_path", tmp_path / "data", "--teacher", teacher]
    words += ["--out", tmp_path / "two", "--k", 8, "--batch_tokens", 128]
    done = subprocess.run([*launcher, *map(str, words)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    two = TeacherCache(tmp_path / "two")
    assert len(two.shards) == 2  # one of each process
    assert content(two, data) == content(build(data, "one"), data)
    assert two.verify().ok
