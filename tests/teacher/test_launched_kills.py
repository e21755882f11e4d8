"""Captures launched by torchrun and by accelerate, killed at random moments: they continue and end bit equal."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from kills import rounds

from qsft.teacher.cache import TeacherCache
from qsft.teacher.format.shards import published_shards

pytestmark = [pytest.mark.slow, pytest.mark.distributed]

WORKER = Path(__file__).with_name("capture_worker.py")
CPU_CONFIG = Path(__file__).parents[2] / "recipes" / "accelerate" / "cpu.yaml"
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"],
    "accelerate": [
        *("accelerate.commands.accelerate_cli", "launch", "--config_file", CPU_CONFIG, "--main_process_port", "0"),
    ],
}
PATIENCE = 300


@pytest.fixture
def start(tmp_path, documents, teacher):
    """start(launcher, name): a launch that captures 300 documents into a directory; `start.data` are the documents."""
    data = documents(300)
    (tmp_path / "data.json").write_text(json.dumps(data))
    started = []

    def run(launcher, name):
        words = [sys.executable, "-m", *LAUNCHERS[launcher], WORKER, tmp_path / "data.json", teacher, tmp_path / name]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(list(map(str, words)), **quiet)
        started.append(process)
        return process

    run.data = data
    yield run
    for process in started:
        process.kill()
        process.communicate()


def kill(process, chosen):
    """Kill one of the two processes of a launch, or the launch; whether they were there."""
    with suppress(psutil.NoSuchProcess):
        launcher = psutil.Process(process.pid)
        captured = launcher.children()
        victims = captured[: 1 + (chosen == "second")][-1:]
        if chosen == "all":
            victims = [*launcher.children(recursive=True), launcher]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        return bool(captured)
    return False


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_launched_capture_killed_at_random_continues_bit_equal(launcher, start, build, content, tmp_path, tell):
    data = start.data
    expected = content(build(data, "one", top_k=8, batch_tokens=64), data)
    rng = random.Random(launcher)
    counts = Counter()
    shards = []
    for number in range(rounds(short=1, long=10)):
        out = tmp_path / str(number)
        for _ in range(rounds(short=1, long=2)):
            process = start(launcher, out.name)
            most = len(published_shards(out)) if out.is_dir() else 0
            until = most + rng.randint(0, 30)
            while process.poll() is None and not (out.is_dir() and len(published_shards(out)) >= until):
                time.sleep(0.002)
            chosen = rng.choice(["first", "second", "all"])
            is_killed = process.poll() is None and kill(process, chosen)
            _, errors = process.communicate(timeout=PATIENCE)
            if not is_killed:
                assert process.returncode == 0, errors[-3000:]
                counts["ended before"] += 1
                break
            assert process.returncode != 0
            counts[f"{chosen} killed"] += 1
            shards.append(len(published_shards(out)) if out.is_dir() else 0)
        process = start(launcher, out.name)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors[-3000:]
        cache = TeacherCache(out)
        assert cache.missing(data) == []
        assert content(cache, data) == expected
        assert cache.verify().ok
    tell(f"captures by {launcher}: {dict(counts)}, with {shards} shards; all continued bit equal")
