"""Checkpoints are complete or ignored, `last` is this run's own, and a run continues only its own trajectory."""

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from qsft.train.checkpoints import (
    Checkpoint,
    check_complete,
    describe_existing_run,
    list_checkpoints,
    move_previous_run,
    read_run_record,
    resolve_checkpoint,
    rotate_checkpoints,
)

SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2}


@pytest.fixture
def run(trainer, data, tmp_path):
    """run(out, resume=…, **settings): a trainer that has trained in `out`."""

    def train(out="run", resume=None, rows=None, callbacks=None, **settings):
        settings = {**SAVING, "output_dir": str(tmp_path / out), **settings}
        made = trainer(rows or data.tokens(), callbacks=callbacks, **settings)
        made.train(resume_from_checkpoint=resume)
        return made

    return train


@pytest.fixture(scope="module")
def kept():
    return {}


@pytest.fixture
def finished(run, kept, tmp_path, tmp_path_factory):
    """The directory of a run with checkpoint-2 and checkpoint-4, made once and copied for every test."""
    if "run" not in kept:
        run("first")
        kept["run"] = tmp_path_factory.mktemp("finished") / "run"
        shutil.copytree(tmp_path / "first", kept["run"])
    return Path(shutil.copytree(kept["run"], tmp_path / "run"))


class StopAt(TrainerCallback):
    """Ends training after a step, with a checkpoint, as a signal does."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = True
            control.should_training_stop = True


# ---- last ----


def test_last_is_this_runs_own_and_not_a_later_step_of_another(run, finished, caplog):
    """A finished run, started anew with another learning rate, stopped early, resumed with last."""
    old = read_run_record(finished)["id"]
    run(learning_rate=5e-3, callbacks=[StopAt(1)])
    assert read_run_record(finished)["id"] != old
    assert resolve_checkpoint(finished, "last") == str(finished / "checkpoint-1")
    resumed = run(learning_rate=5e-3, resume=True)
    whole = run("whole", learning_rate=5e-3)
    for mine, other in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert mine.equal(other)


def test_starting_anew_where_checkpoints_are_is_warned_of_by_the_trainer(run, finished, monkeypatch):
    warnings = []
    monkeypatch.setattr("qsft.train.trainer.logger.warning", warnings.append)
    run(max_steps=1)
    assert any("has checkpoints of another run (checkpoint-4, checkpoint-2)" in text for text in warnings)
    assert any("trainer.train(resume_from_checkpoint=True)" in text and "--" not in text for text in warnings)


def test_a_new_run_beside_old_checkpoints_gives_a_message_or_moves_them_aside(finished):
    assert re.search(r"has checkpoints of another run.*last.*output_dir.*--overwrite", describe_existing_run(finished))
    moved = move_previous_run(finished)
    assert sorted(path.name for path in moved.iterdir()) == ["README.md", "checkpoint-2", "checkpoint-4", "run.json"]
    assert Checkpoint(moved / "checkpoint-4").problems() == []
    assert describe_existing_run(finished) is None
    assert move_previous_run(finished) is None
    with pytest.raises(ValueError, match="no complete checkpoint of this run"):
        resolve_checkpoint(finished, "last")


def test_an_incomplete_checkpoint_is_skipped_and_named(run, finished, monkeypatch):
    shutil.copytree(finished / "checkpoint-4", finished / "checkpoint-6")
    (finished / "checkpoint-6" / "complete.json").unlink()
    (finished / "checkpoint-6" / "trainer_state.json").unlink()
    (finished / "checkpoint-8").mkdir()
    warnings = []
    monkeypatch.setattr("qsft.train.checkpoints.logger.warning", warnings.append)
    assert resolve_checkpoint(finished, "last") == str(finished / "checkpoint-4")
    assert "checkpoint-8: the save is incomplete, checkpoint-6: the save is incomplete" in warnings[0]
    with pytest.raises(ValueError, match=r"cannot resume from .*checkpoint-6: the save is incomplete.*checkpoint-4"):
        run(resume=str(finished / "checkpoint-6"), max_steps=8)


def test_the_old_checkpoint_outlives_a_save_that_fails(run, finished, monkeypatch):
    """save_total_limit=1 must not delete the last complete checkpoint before the next one is complete."""

    def fails(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "seal", fails)
    with pytest.raises(KeyboardInterrupt):
        run(resume=True, max_steps=8, save_total_limit=1)
    assert [one.path.name for one in list_checkpoints(finished) if not one.problems()] == [
        "checkpoint-4",
        "checkpoint-2",
    ]
    monkeypatch.undo()
    run(resume=True, max_steps=8, save_total_limit=1)
    assert [one.path.name for one in list_checkpoints(finished)] == ["checkpoint-8"]


# ---- damage ----


def files_of(checkpoint):
    return sorted(file.name for file in checkpoint.iterdir())


@pytest.mark.parametrize("harm", ["flip", "truncate", "delete"])
def test_damage_to_any_file_is_named_with_the_checkpoint_to_use_instead(finished, harm):
    checkpoint = finished / "checkpoint-4"
    for name in files_of(checkpoint):
        content = (checkpoint / name).read_bytes()
        if harm == "delete":
            (checkpoint / name).unlink()
        elif harm == "truncate":
            (checkpoint / name).write_bytes(content[: len(content) // 2])
        else:
            middle = len(content) // 2
            (checkpoint / name).write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with pytest.raises(ValueError) as error:
            check_complete(checkpoint)
        assert name in str(error.value) or (name == "complete.json" and "incomplete" in str(error.value))
        assert f"Resume from {finished / 'checkpoint-2'} instead" in str(error.value)
        (checkpoint / name).write_bytes(content)
    check_complete(checkpoint)


def test_a_flipped_bit_stops_a_resume_unless_digests_are_off(run, finished):
    file = finished / "checkpoint-4" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors was altered.*checkpoint-2 instead"):
        run(resume=True, max_steps=6)
    assert run(resume=True, max_steps=6, checkpoint_digests=False).state.global_step == 6


# ---- the trajectory ----

OTHERS = {
    "learning_rate": {"learning_rate": 2e-3},
    "seed": {"seed": 1},
    "batch": {"gradient_accumulation_steps": 4},
    "max_length": {"max_length": 9},
    "lr_scheduler_type": {"lr_scheduler_type": "constant"},
    "weight_decay": {"weight_decay": 0.1},
    "target": {"target": "dft"},
}


@pytest.mark.parametrize("what", [*OTHERS, "data"])
def test_another_trajectory_raises_an_error_that_names_it_and_can_be_allowed(run, data, finished, what):
    other = {"rows": data.tokens(20)} if what == "data" else OTHERS[what]
    names = ["data", "max_length"] if what == "max_length" else [what]  # truncation changes the documents
    with pytest.raises(ValueError, match=rf"trained with a different {' and '.join(names)}:\n") as error:
        run(resume=True, max_steps=5, **other)
    assert f"resume_allow_changed={json.dumps(names)}" in str(error.value)
    before = read_run_record(finished)["id"]
    made = run(resume=True, max_steps=5, resume_allow_changed=names, save_steps=1, **other)
    assert made.state.global_step == 5
    after = read_run_record(finished)  # another trajectory is another run, which knows where it came from
    assert after["id"] != before
    assert after["parent"] == {"run": before, "checkpoint": str(finished / "checkpoint-4"), "changed": names}
    assert resolve_checkpoint(finished, "last") == str(finished / "checkpoint-5")


def test_another_learning_rate_that_is_allowed_is_used(run, finished):
    settings = {"max_steps": 6, "learning_rate": 2e-3, "resume_allow_changed": ["learning_rate"]}
    made = run(resume=str(finished / "checkpoint-2"), **settings)
    rates = [entry["learning_rate"] for entry in made.state.log_history if "learning_rate" in entry]
    whole = run("whole", max_steps=6, learning_rate=2e-3)
    expected = [entry["learning_rate"] for entry in whole.state.log_history if "learning_rate" in entry]
    assert rates[2:] == pytest.approx(expected[2:])


def test_more_steps_and_another_split_of_the_batch_are_allowed(run, finished):
    before = read_run_record(finished)["id"]
    made = run(resume=True, max_steps=6, per_device_train_batch_size=8, gradient_accumulation_steps=1, logging_steps=2)
    assert made.state.global_step == 6
    assert read_run_record(finished)["id"] == before
    assert read_run_record(finished)["recorded"]["max_steps"] == 6


def test_every_name_of_a_run_record_can_be_allowed(run, finished):
    names = list(read_run_record(finished)["trajectory"])
    assert run(resume=True, max_steps=5, resume_allow_changed=names).state.global_step == 5


def test_a_run_that_began_from_a_checkpoint_elsewhere_resumes_there_before_its_own_first_save(run, finished):
    run("branch", resume=str(finished / "checkpoint-2"), max_steps=3, save_strategy="no")
    branch = finished.parent / "branch"
    assert resolve_checkpoint(branch, "last") == str(finished / "checkpoint-2")
    assert read_run_record(branch)["parent"]["run"] == read_run_record(finished)["id"]


def test_checkpoints_of_another_trainer_are_found(finished):
    for one in list_checkpoints(finished):
        for name in ("complete.json", "run.json"):
            (one.path / name).unlink()
    (finished / "run.json").unlink()
    assert resolve_checkpoint(finished, "last") == str(finished / "checkpoint-4")
    (finished / "checkpoint-4" / "trainer_state.json").unlink()
    assert resolve_checkpoint(finished, "last") == str(finished / "checkpoint-2")


def test_the_old_policy_of_other_batches_is_not_used(data):
    from qsft.train.old_policy import OldPolicy

    block = OldPolicy(2, lambda batch: torch.full((2,), 7.0))
    block._from_checkpoint = [{"input_ids": torch.tensor([1, 2]), "old_logp": torch.zeros(2)}]
    batch = {"input_ids": torch.tensor([1, 3])}
    [served] = block.batches_of_step(iter([batch]), 1, step=1)
    assert served["old_logp"].view(torch.float32).tolist() == [7.0, 7.0]


# ---- rotation ----


def test_a_clock_that_was_set_back_does_not_delete_new_checkpoints(run, finished):
    """Trainer rotates by modification time, and would keep the file from the future."""
    os.utime(finished / "checkpoint-2", (4e9, 4e9))
    run(resume=True, max_steps=8, save_total_limit=1)
    assert [one.path.name for one in list_checkpoints(finished)] == ["checkpoint-8"]


def test_rotation_leaves_the_checkpoints_of_other_runs_alone(run, finished):
    run(learning_rate=5e-3, max_steps=8, save_total_limit=1)
    assert [one.path.name for one in list_checkpoints(finished)] == ["checkpoint-8"]  # 2 and 4 were written over


def test_the_best_checkpoint_is_kept(finished):
    run_id = read_run_record(finished)["id"]
    rotate_checkpoints(finished, run_id, limit=1, best=str(finished / "checkpoint-2"))
    assert len(list_checkpoints(finished)) == 2
    rotate_checkpoints(finished, "another run", limit=1, best=None)
    assert len(list_checkpoints(finished)) == 2
    rotate_checkpoints(finished, run_id, limit=1, best=None)
    assert [one.path.name for one in list_checkpoints(finished)] == ["checkpoint-4"]


# ---- adapters ----


def test_an_adapter_is_not_resumed_on_another_base(run, tiny_model):
    lora = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM")
    run("lora", peft_config=lora)
    with pytest.raises(ValueError, match="trained with a different base_weights"):
        run("lora", peft_config=lora, model=tiny_model(seed=9), resume=True, max_steps=6)
    resumed = run("lora", peft_config=lora, resume=True, max_steps=6)
    assert resumed.state.global_step == 6


def test_full_fine_tuning_records_its_initial_weights(run, tmp_path):
    run("full", max_steps=1)
    assert read_run_record(tmp_path / "full")["recorded"]["initial_weights"]


# ---- a full disk ----


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("[enforce fail at inline_container.cc:672] . ")],
    ids=["os", "torch"],
)
def test_a_full_disk_is_named_and_the_previous_checkpoint_is_intact(run, finished, monkeypatch, error):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("torch.save", fails)
    with pytest.raises(OSError, match=r"the disk is full.*checkpoint-6.*checkpoint-4 is intact"):
        run(resume=True, max_steps=6)
    assert resolve_checkpoint(finished, "last") == str(finished / "checkpoint-4")


def test_two_processes_do_not_save_to_one_directory(run, held_elsewhere, tmp_path):
    (tmp_path / "run").mkdir()
    with held_elsewhere(tmp_path / "run"):
        with pytest.raises(ValueError, match="choose another output_dir"):
            run()
        run(save_strategy="no")
    assert not list_checkpoints(tmp_path / "run")
    run()
    assert [checkpoint.step for checkpoint in list_checkpoints(tmp_path / "run")] == [4, 2]
