"""Where the commands of README and guide run, and the browser that looks at the site."""

import json
from pathlib import Path

import jaxtyping
import pytest
from browser import chromium  # noqa: F401

REPO = Path(__file__).parents[2]


@pytest.fixture
def folder(tiny_files, tmp_path, monkeypatch):
    """Where the commands run: a directory with the recipes and the benchmarks' rows, and nothing else."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run them: shapes are not checked
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "home"))
    (tmp_path / "recipes").symlink_to(REPO / "recipes")
    (tmp_path / "tasks").mkdir()
    for task in ("math500", "minerva", "olympiadbench", "aime24", "amc23"):
        rows = [{"problem": f"{i} + 1 = ?", "answer": str(i + 1)} for i in range(2)]
        (tmp_path / "tasks" / f"{task}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path
