"""Sharded trainings killed at random times, one process of two or all at once: they resume bit for bit."""

import os
import random
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest
from kills import rounds
from safetensors.torch import load_file

from qsft.train.checkpoints import list_checkpoints, resolve_checkpoint

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

CASE = {"name": "run", "target": "target_sft", "model": "untied", "save": True, "steps": 12}
PATIENCE = 300


def kill_at_random(process, out, longest, rng):
    """Kill one of two training processes, or all, at a random time after the run began; which, or None if it ended."""
    while process.poll() is None and not (out / "run.json").is_file():
        time.sleep(0.01)
    time.sleep(rng.uniform(0, longest))
    chosen = rng.choice(["the first process", "the second process", "all"])
    if process.poll() is not None:
        return None
    launcher = psutil.Process(process.pid)
    trained = launcher.children()
    if len(trained) < 2:
        return None
    if chosen == "all":
        victims = [launcher, *launcher.children(recursive=True)]  # each has a session of its own
    else:
        victims = [trained[chosen == "the second process"]]
    for victim in victims:
        with suppress(psutil.NoSuchProcess):
            victim.kill()
    return chosen


def end(process):
    """Wait for a launcher, and kill what is left of a launch that hangs."""
    family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    try:
        process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.kill()
    return process.returncode


def resuming(out):
    """The case that continues where a killed run can, or starts anew where it was killed before its first save."""
    try:
        resolve_checkpoint(out, "last")
    except ValueError:
        return CASE
    return {**CASE, "checkpoint": "last"}


@pytest.mark.parametrize("backend", ["ddp", "zero3", "fsdp2"])
def test_killed_at_random_times_it_resumes_bit_for_bit(backend, launch, start, tmp_path, tell):
    if backend == "zero3":
        pytest.importorskip("deepspeed")
    if backend == "ddp" and not os.environ.get("QSFT_CAMPAIGN"):
        pytest.skip("part of `make campaign`: a kill inside a save is tested with the backends")
    unbroken, _ = launch(backend, [CASE])
    expected = load_file(unbroken / "run" / "model.safetensors")
    began, ended = ((unbroken / "run" / name).stat().st_mtime for name in ("run.json", "model.safetensors"))
    rng = random.Random(backend)
    counts, kept = Counter(), []
    number = 0
    while len(kept) < rounds(short=1, long=12):
        number += 1
        assert number < 50, "every run ended before it was killed"
        folder = tmp_path / str(number)
        folder.mkdir()
        for _ in range(rounds(short=1, long=2)):  # the second kill is of the resumed run
            [process] = start(backend, [resuming(folder / "run")], folder)
            chosen = kill_at_random(process, folder / "run", 0.7 * (ended - began), rng)
            end(process)
            if chosen is None:
                break
            counts[f"{chosen} killed"] += 1
            kept.append(sum(not one.problems() for one in list_checkpoints(folder / "run")))
        if chosen is not None:
            launch(backend, [resuming(folder / "run")], folder)
        mine = load_file(folder / "run" / "model.safetensors")
        assert mine.keys() == expected.keys()
        assert all(mine[name].equal(expected[name]) for name in expected)
        assert not any(one.problems() for one in list_checkpoints(folder / "run"))
    tell(f"{backend}: {dict(counts)}, with {kept} complete checkpoints; all resumed bit for bit")
