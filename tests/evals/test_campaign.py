"""Evaluations killed at random moments and damaged in random places: the same result, or an error naming the file."""

import json
import random
import shutil
import signal
import subprocess
import sys

import pytest
from kills import kill_after, rounds

from qsft.evals.compare import compare
from qsft.evals.evaluate import evaluate, rescore

pytestmark = pytest.mark.slow

HOW = {"prompt": "plain", "num_samples": 4, "max_new_tokens": 8, "batch_size": 8, "silent": True}
ENTRY = """
import sys
from qsft.evals.evaluate import evaluate
evaluate(sys.argv[1], sys.argv[2], output_dir=sys.argv[3], prompt="plain", num_samples=4, max_new_tokens=8,
         batch_size=8)
"""
KILLS = rounds(short=4, long=20)
DAMAGES = rounds(short=42, long=210)


@pytest.fixture(scope="module")
def whole(sum_directory, sum_file, tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole") / "run"
    evaluate(sum_directory, str(sum_file), output_dir=directory, **HOW)
    return directory


def contents(directory):
    """What must not differ: everything that another run of the same evaluation writes alike."""
    names = ("generations/sums.jsonl", "grades/sums.jsonl", "problems/sums.jsonl", "summary.json", "settings.json")
    return {name: (directory / name).read_text("utf-8") for name in names}


def test_killed_at_random_moments_it_ends_as_if_it_had_not(whole, sum_directory, sum_file, tmp_path, tell):
    kept = []
    for number, samples in enumerate(sorted(random.Random(0).sample(range(1, 150), KILLS))):
        out = tmp_path / str(number)
        words = [sys.executable, "-c", ENTRY, str(sum_directory), str(sum_file), str(out)]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        kept.append(kill_after(process, out / "generations" / "sums.jsonl", samples).count("\n"))
        assert process.returncode == -signal.SIGKILL
        evaluate(sum_directory, str(sum_file), output_dir=out, **HOW)
        assert contents(out) == contents(whole)
    tell(f"evaluation: {KILLS} starts, all killed, with {kept} of 160 samples on disk; all ended alike")


def damage(path, rng):
    """One of: a flipped bit, a truncation, an overwritten block, an emptied or a removed file; what it was."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "cut", "block", "empty", "remove"])
    at = rng.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "block":
        data[at : at + 16] = rng.randbytes(16)
    if kind == "remove":
        path.unlink()
    else:
        path.write_bytes(data[:at] if kind == "cut" else b"" if kind == "empty" else bytes(data))
    return f"{kind} in {path.name}"


def test_damage_is_named_or_harmless(whole, sum_directory, sum_file, tmp_path, tell):
    expected = json.loads((whole / "summary.json").read_text("utf-8"))["tasks"]
    baseline = compare([whole], paper=published(tmp_path)).summary["accuracy"]
    files = sorted(path.relative_to(whole) for path in whole.rglob("*.json*"))
    rng = random.Random(1)
    named = 0
    harmless = 0
    for number in range(DAMAGES):
        out = tmp_path / "run"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(whole, out)
        what = damage(out / files[number % len(files)], rng)
        try:
            if number % 6 > 1:
                accuracy = compare([out], paper=published(tmp_path)).summary["accuracy"]
                assert accuracy["run"] == baseline["run"], what
            elif number % 6 == 0:
                assert rescore(out).summary["tasks"] == expected, what
            else:
                assert evaluate(sum_directory, str(sum_file), output_dir=out, **HOW).summary["tasks"] == expected, what
            harmless += 1
        except (ValueError, OSError) as error:
            if str(out) not in str(error):
                raise AssertionError(f"{what} is not named") from error
            named += 1
    tell(f"evaluation: {DAMAGES} damaged files, {named} named, {harmless} harmless, 0 silent")


def published(directory):
    path = directory / "published.json"
    path.write_text(json.dumps({"rows": {"SFT": {"sums": 50.0}}}), encoding="utf-8")
    return path
