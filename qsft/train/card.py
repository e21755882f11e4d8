"""The model card's section on the target: which distribution the model was fitted to, and whose."""

from pathlib import Path
from typing import Any

from qsft.targets.table import describe
from qsft.targets.zoo import TARGETS

TITLE = "A Unifying Lens on Supervised Fine-Tuning Through Target Distribution Design"
BIBTEX = f"""\
@article{{xie2026targetsft,
  title  = {{{TITLE}}},
  author = {{Xie, Tong and Ban, Yuanhao and Hong, Yunqi and An, Sohyun and Chen, Yihang and Hsieh, Cho-Jui}},
  year   = {{2026}},
  url    = {{https://txie1.github.io/Target-SFT/}}
}}"""
PAPER = {"title": TITLE, "citation": BIBTEX}


def add_section(file: Path, target: object, record: dict[str, Any]) -> None:
    """Insert the target's section before the framework versions of TRL's card."""
    before, found, after = file.read_text(encoding="utf-8").partition("### Framework versions")
    file.write_text(f"{before}{section(target, record)}\n{found}{after}", encoding="utf-8")


def section(target: object, record: dict[str, Any]) -> str:
    """Name, formula, hyper-parameters and teacher, as Markdown; a target the user wrote has no name."""
    name = record["name"]
    formula = describe(name) if name in TARGETS else "Q = γ·δ_y + (1−γ)·π̃      loss = scale·CE(Q, p)"
    return (
        "### Target distribution\n\n"
        f"Trained with qsft, target `{name or 'custom'}`:\n\n"
        f"```\n{formula}\n```\n\n"
        f"- target: `{target!r}`\n"
        f"- {record.get('role') or 'teacher'}: {teacher_line(record['teacher'])}\n"
    )


def teacher_line(identity: dict[str, Any] | None) -> str:
    """The teacher in words: its name, and how it was stored."""
    if identity is None:
        return "none"
    if "live" in identity:
        return f"`{identity['live']}`, run live"
    about = identity["teacher"]
    revision = f" at revision `{about['revision']}`" if about.get("revision") else ""
    return f"`{about['name']}`{revision}, cached as top-{identity['k']} log-probs ({identity['encoding']})"
