"""A file system that is really full while a checkpoint is written, at every place of the save; then space is freed."""

import random
import shutil
import subprocess

import pytest
from kills import rounds
from transformers import TrainerCallback

from qsft.train.checkpoints import Checkpoint, list_checkpoints, resolve_checkpoint

SAVING = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}
DISK_MIB = 24
KINDS = {"full": {"target": "sft"}, "psft": {"target": "psft", "psft_block_steps": 3}}


@pytest.fixture
def disk(tmp_path):
    """A file system of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "qsft-test", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)  # weights that were loaded are still mapped


class FillDisk(TrainerCallback):
    """Leaves so many bytes free on a file system in the step before the second checkpoint."""

    def __init__(self, disk, leave):
        self.file = disk / "filler"
        self.disk = disk
        self.leave = leave

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == 3:
            self.file.write_bytes(bytes(shutil.disk_usage(self.disk).free - self.leave))


def size(checkpoint):
    return sum(file.stat().st_size for file in checkpoint.iterdir())


@pytest.mark.parametrize(
    ("kind", "count"),
    [("full", 1), *(pytest.param(kind, rounds(short=6, long=60), marks=pytest.mark.slow) for kind in KINDS)],
)
def test_the_error_names_the_disk_and_the_run_resumes_once_there_is_space(
    trainer, data, disk, tmp_path, kind, count, tell
):
    def train(place, resume=None, callbacks=()):
        made = trainer(data.tokens(), output_dir=str(place), callbacks=[*callbacks], **SAVING, **KINDS[kind])
        made.train(resume_from_checkpoint=resume)
        return made.model.state_dict()

    expected = train(tmp_path / "whole")
    needed = size(tmp_path / "whole" / "checkpoint-4")
    rng = random.Random(kind)
    # From nothing at all to almost enough: weights, optimizer, the small files and the seal fail in turn.
    leaves = [0, needed - 8192, *(rng.randrange(needed - 8192) for _ in range(count))]
    for leave in leaves:
        out = disk / "run"
        filler = FillDisk(disk, leave)
        with pytest.raises(OSError, match="the disk is full") as caught:
            train(out, callbacks=[filler])
        for part in ("checkpoint-4", "a checkpoint takes about", "were free", "checkpoint-2 is intact"):
            assert part in str(caught.value)
        filler.file.unlink()
        assert resolve_checkpoint(out, "last") == str(out / "checkpoint-2")
        assert not Checkpoint(out / "checkpoint-2").problems()
        mine = train(out, resume="last")
        assert all(mine[name].equal(expected[name]) for name in expected)
        assert not any(one.problems() for one in list_checkpoints(out))
        shutil.rmtree(out)
    tell(f"{kind}: {len(leaves)} checkpoints on a full disk, each named; every resumed run equal to the unbroken one")


def test_without_a_previous_checkpoint_none_is_promised(trainer, data, disk):
    settings = {**SAVING, "save_steps": 4}
    out = disk / "run"
    with pytest.raises(OSError, match="the disk is full") as caught:
        trainer(data.tokens(), output_dir=str(out), callbacks=[FillDisk(disk, 100_000)], **settings).train()
    assert "intact" not in str(caught.value)
    assert "no complete checkpoint" in str(caught.value)
