import os
import shutil
import signal
import time

import numpy as np

from qsft.teacher.cache import TeacherCache
from qsft.teacher.capture import build_cache

KILLS = 20


def test_a_capture_killed_at_any_moment_continues_bit_equal(
    documents, tiny_model, tiny_tokenizer, content, fork, tmp_path
):
    """SIGKILL at 20 random moments; a capture that finished before its kill starts again in an empty directory."""
    data, model, rng = documents(400), tiny_model(), np.random.default_rng()
    options = {"tokenizer": tiny_tokenizer, "progress": False, "k": 8, "batch_tokens": 64, "shard_bytes": 1}

    def capture(name):
        return build_cache(data, model, tmp_path / name, **options)

    start = time.monotonic()
    want = content(capture("whole"), data)
    duration = time.monotonic() - start
    kills = 0
    sizes = []
    while kills < KILLS:
        child = fork(lambda: capture("killed"))
        time.sleep(rng.uniform(0, duration / 4))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            kills += 1
            manifest = tmp_path / "killed" / "manifest.json"
            sizes.append(len(TeacherCache(manifest.parent)) if manifest.exists() else 0)
        else:
            assert os.WEXITSTATUS(status) == 0
            assert content(TeacherCache(tmp_path / "killed"), data) == want
            shutil.rmtree(tmp_path / "killed")
    print("documents after each kill:", sizes)
    resumed = capture("killed")
    assert content(resumed, data) == want
    assert resumed.verify().ok
