"""The model card's section on the target: which distribution the model was fitted to, and whose."""

from pathlib import Path
from typing import Any

from qsft.targets.registry import TARGETS
from qsft.targets.table import describe

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
    """Insert the target's section before the framework versions of TRL's card; a target the user wrote has no name."""
    before, found, after = file.read_text(encoding="utf-8").partition("### Framework versions")
    name = record["name"]
    formula = describe(name) if name in TARGETS else "Q = γ·δ_y + (1−γ)·π̃      loss = scale·CE(Q, p)"
    section = (
        f"### Target distribution\n\nTrained with qsft, target `{name or 'custom'}`:\n\n```\n{formula}\n```\n\n"
        f"- target: `{target!r}`\n- {record.get('role') or 'teacher'}: {teacher_line(record['teacher'])}\n"
    )
    file.write_text(f"{before}{section}\n{found}{after}", encoding="utf-8")


def teacher_line(identity: dict[str, Any] | None) -> str:
    if identity is None or "live" in identity:
        return "none" if identity is None else f"`{identity['live']}`, run live"
    about = identity["teacher"]
    revision = f" at revision `{about['revision']}`" if about.get("revision") else ""
    return f"`{about['name']}`{revision}, cached as top-{identity['top_k']} log-probs ({identity['cache_encoding']})"
