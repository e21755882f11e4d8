"""What a checkpoint remembers beside weights and optimiser: the target it was trained with, and its teacher."""

import json
from pathlib import Path
from typing import Any

FILE = "target.json"


def write_record(checkpoint: Path, record: dict[str, Any]) -> None:
    """Write the record into the checkpoint's directory."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / FILE).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_record(checkpoint: Path) -> dict[str, Any] | None:
    """The checkpoint's record; None for a checkpoint another trainer wrote."""
    file = checkpoint / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


def refuse_other_record(checkpoint: Path, now: dict[str, Any]) -> None:
    """Raise when the checkpoint was trained with another target or teacher than this run's."""
    then = read_record(checkpoint)
    if then is None:
        return
    for what in ("target", "teacher"):
        # Through JSON, since a tuple comes back as a list.
        if then[what] != json.loads(json.dumps(now[what])):
            raise ValueError(
                f"{checkpoint} was trained with another {what}:\n  then {json.dumps(then[what], ensure_ascii=False)}\n"
                f"  now  {json.dumps(now[what], ensure_ascii=False)}\nResuming would mix the two in one run. Use the "
                f"same {what}, start a new output_dir, or set resume_with_other_target=True."
            )
