"""Campaigns: runs killed at random moments resume bit for bit; damage to any file of a checkpoint is found.

Each attempt is a fork of this process, which has everything imported: a kill costs a second, not ten.
"""

import multiprocessing
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from kills import rounds
from peft import LoraConfig
from safetensors.torch import load_file

from qsft import sealed_directory
from qsft.train.checkpoints import Checkpoint, resolve_checkpoint

pytestmark = pytest.mark.slow

KINDS = {
    "plain": {"target": "dft"},
    "packed": {"target": "sft", "packing": True, "max_length": 24},
    "lora": {"target": "sft"},
    "psft": {"target": "psft", "psft_block_steps": 3},
}
SETTINGS = {"max_steps": 8, "save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}
MOMENTS = ("open", "model", "optimizer", "state", "seal", "sealed", "step")


@pytest.fixture
def attempt(trainer, data):
    """attempt(kind, out, moment): train in a fork to the end, or until it kills itself; whether it reached the end."""

    def train(kind, out, moment):
        torch.set_num_threads(1)
        lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM") if kind == "lora" else None
        made = trainer(data.tokens(), peft_config=lora, output_dir=str(out), **SETTINGS, **KINDS[kind])
        if moment is not None:
            die_at(made, *moment)
        try:
            checkpoint = resolve_checkpoint(out, "last")
        except ValueError:
            checkpoint = None  # killed before its first checkpoint was complete
        made.train(resume_from_checkpoint=checkpoint)
        made.save_model(str(out / "final"))

    def run(kind, out, moment=None):
        process = multiprocessing.get_context("fork").Process(target=train, args=(kind, out, moment))
        process.start()
        process.join(300)
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode == 0

    return run


def die_at(made, name, count):
    """Kill this process the `count`-th time it comes to the moment `name`."""
    places = {
        "open": (Checkpoint, "begin"),
        "model": (made, "_save"),
        "optimizer": (made, "_save_optimizer_and_scheduler"),
        "state": (made, "_save_rng_state"),
        "seal": (sealed_directory, "_list_files"),
        "sealed": (Checkpoint, "seal"),
        "step": (made, "training_step"),
    }
    owner, attribute = places[name]
    original = getattr(owner, attribute)
    calls = []

    def dies(*args, **kwargs):
        calls.append(1)
        result = original(*args, **kwargs)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, attribute, dies)


def final(out):
    [file] = (out / "final").glob("*model.safetensors")
    return load_file(file)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_runs_resume_bit_for_bit(attempt, tmp_path, kind, tell):
    rng = random.Random(kind)
    kills = 0
    assert attempt(kind, tmp_path / "whole")
    expected = final(tmp_path / "whole")
    for number, name in enumerate(MOMENTS * rounds(short=1, long=4)):
        out = tmp_path / f"killed-{number}"
        count = rng.randint(1, 14) if name == "step" else rng.randint(1, 3)
        kills += not attempt(kind, out, (name, count))
        kills += not attempt(kind, out, (rng.choice(MOMENTS), rng.randint(1, 2)))
        assert (out / "final").is_dir() or attempt(kind, out)
        mine = final(out)
        assert mine.keys() == expected.keys()
        assert all(mine[key].equal(expected[key]) for key in mine), name
    tell(f"{kind}: {kills} kills at {len(MOMENTS)} kinds of moments, every resumed run equal to the unbroken one")
    assert kills >= len(MOMENTS)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_to_any_file_of_a_checkpoint_is_found(attempt, tmp_path, kind, tell):
    out = tmp_path / "run"
    rng = random.Random(kind)
    harms = 0
    assert attempt(kind, out)
    checkpoint = Path(resolve_checkpoint(out, "last"))
    assert Checkpoint(checkpoint).problems() == []
    kept = shutil.copytree(checkpoint, tmp_path / "kept")
    for file in sorted(kept.iterdir()):
        content = file.read_bytes()
        for _ in range(rounds(short=12, long=50)):
            place = rng.randrange(len(content))
            flipped = content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]
            (checkpoint / file.name).write_bytes(rng.choice([flipped, flipped, content[:place], content + b"\0"]))
            flaws = Checkpoint(checkpoint).problems()
            assert any(file.name in flaw for flaw in flaws), (file.name, flaws)
            harms += 1
        (checkpoint / file.name).write_bytes(content)
    tell(f"{kind}: {harms} damaged files of a checkpoint, all found and named")
    assert Checkpoint(checkpoint).problems() == []
