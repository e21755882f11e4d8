"""The help of `qsft train`: qsft's own keys in groups, with their defaults."""

from dataclasses import MISSING, fields
from textwrap import fill
from typing import Any

from trl import SFTConfig

from qsft.recipe.keys import RecipeSettings
from qsft.train.config import TargetSFTConfig

GROUPS: dict[str, tuple[str, ...]] = {
    "data": (
        "dataset_name",
        "dataset_config",
        "dataset_train_split",
        "dataset_test_split",
        "dataset_revision",
        "data_dir",
        "question_column",
        "response_column",
        "prompt",
        "response",
        "max_row_tokens",
        "sample_rows",
        "sample_seed",
        "curate",
        "gold",
        "verifier",
    ),
    "run": (
        "global_batch_size",
        "launch",
        "eval_tasks",
        "eval_protocol",
        "target_protocols",
        "overwrite",
        "dry_run",
    ),
}
TARGET_GROUP = "target and teacher"


def describe_own_keys() -> str:
    """Return the keys that qsft adds to TRL's, in groups."""
    described = {field.name: field for owner in (RecipeSettings, TargetSFTConfig) for field in fields(owner)}
    inherited = {field.name for field in fields(SFTConfig)}
    grouped = {name for names in GROUPS.values() for name in names}
    own = [
        field.name
        for field in fields(TargetSFTConfig)
        if field.name not in inherited and field.name not in grouped and field.init
    ]
    sections = {TARGET_GROUP: ("teacher", *own), **GROUPS}
    lines: list[str] = []
    for title, names in sections.items():
        lines += [f"{title}:"]
        lines += [_describe(described[name]) for name in names]
    return "\n".join(lines)


def _describe(field: Any) -> str:
    default = None if field.default is MISSING else field.default
    shown = "" if default is None else f" (default: {default})"
    text = " ".join(str(field.metadata.get("help", "")).split())
    return f"  --{field.name}\n" + fill(f"{text}{shown}", 80, initial_indent="      ", subsequent_indent="      ")
