"""What a checkpoint remembers beside weights and optimiser: the target it was trained with, and its teacher."""

import json
from pathlib import Path
from typing import Any

from transformers.trainer_utils import TrainOutput, get_last_checkpoint
from trl import SFTTrainer

from qsft.files import read_json, write_json

FILE = "target.json"


class RecordingTrainer(SFTTrainer):
    """SFTTrainer that writes `record()` into every checkpoint, and resumes none whose record differs."""

    def record(self) -> dict[str, Any]:
        """What must be the same for a checkpoint to be continued: "target" and "teacher", as JSON."""
        raise NotImplementedError

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.args.should_save:
            write_json(Path(self._get_output_dir(trial), f"checkpoint-{self.state.global_step}", FILE), self.record())
        super()._save_checkpoint(model, trial)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; a checkpoint of another target or teacher is refused unless `resume_with_other_target` is set."""
        checkpoint = resume_from_checkpoint
        if checkpoint is True:
            checkpoint = get_last_checkpoint(self.args.output_dir)
        if checkpoint:
            if not self.args.resume_with_other_target:
                refuse_other_record(Path(checkpoint), self.record())
            self._total_train_tokens = (read_record(Path(checkpoint)) or {}).get("num_tokens", 0)
        return super().train(resume_from_checkpoint, *args, **kwargs)


def read_record(checkpoint: Path) -> dict[str, Any] | None:
    """The checkpoint's record; None for a checkpoint another trainer wrote."""
    file = checkpoint / FILE
    return read_json(file, "Resume from another checkpoint.") if file.is_file() else None


def refuse_other_record(checkpoint: Path, now: dict[str, Any]) -> None:
    """Raise when the checkpoint was trained with another target or teacher than this run's."""
    then = read_record(checkpoint)
    if then is None:
        return
    for what in ("target", "teacher"):
        # Through JSON, since a tuple comes back as a list.
        if then.get(what) != json.loads(json.dumps(now[what])):
            before, present = (json.dumps(record.get(what), ensure_ascii=False) for record in (then, now))
            raise ValueError(
                f"{checkpoint} was trained with another {what}:\n  then {before}\n  now  {present}\nResuming would "
                f"mix the two in one run. Use the same {what}, start a new output_dir, or set "
                "resume_with_other_target=True."
            )
