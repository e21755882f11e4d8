"""The model card's section on the target: the distribution that was fitted, and its teacher."""

from pathlib import Path
from typing import Any

from qsft.targets.registry import TARGETS
from qsft.targets.table import describe

TITLE = "A Unifying Lens on Supervised Fine-Tuning Through Target Distribution Design"
CITATION = f"""\
@article{{xie2026targetsft,
  title   = {{{TITLE}}},
  author  = {{Xie, Tong and Ban, Yuanhao and Hong, Yunqi and An, Sohyun and Chen, Yihang and Hsieh, Cho-Jui}},
  journal = {{arXiv preprint arXiv:2606.11189}},
  year    = {{2026}},
  url     = {{https://txie1.github.io/Target-SFT/}}
}}"""
PAPER = {"title": TITLE, "citation": CITATION}
GENERAL_FORMULA = "Q = γ·δ_y + (1−γ)·π̃      loss = scale·CE(Q, p)"
NEXT_SECTION = "### Framework versions"


def add_target_section(card: Path, target: object, record: dict[str, Any]) -> None:
    """Insert the section on the target into TRL's model card, before the framework versions.

    Args:
        record: name of the target in the registry (None for the user's own target), role and identity of the teacher.
    """
    before, heading, after = card.read_text(encoding="utf-8").partition(NEXT_SECTION)
    name = record["name"]
    formula = describe(name) if name in TARGETS else GENERAL_FORMULA
    section = (
        f"### Target distribution\n\nTrained with qsft, target `{name or 'custom'}`:\n\n```\n{formula}\n```\n\n"
        f"- target: `{target!r}`\n- {record.get('role') or 'teacher'}: {describe_teacher(record['teacher'])}\n"
    )
    card.write_text(f"{before}{section}\n{heading}{after}", encoding="utf-8")


def describe_teacher(identity: dict[str, Any] | None) -> str:
    """The teacher of a run in one line of Markdown."""
    if identity is None:
        return "none"
    if "live" in identity:
        return f"`{identity['live']}`, run live"
    teacher = identity["teacher"]
    revision = f" at revision `{teacher['revision']}`" if teacher.get("revision") else ""
    return f"`{teacher['name']}`{revision}, cached as top-{identity['top_k']} log-probs ({identity['cache_encoding']})"
