"""The guide and the README say what the committed study found (benchmarks/vouched)."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.vouched.__main__ import RESULTS, read
from benchmarks.vouched.report import JUDGE, PICK, averages, read_scores, table, verdict

REPO = Path(__file__).parents[2]
SCORES = read_scores(read(RESULTS))
# The figures of a bullet of the README: (method, world), means over the pick seeds.
FIGURES = {
    "**Clean demonstrations**": [("sft", "clean"), ("target", "clean")],
    "**A wrong teacher**": [
        ("target", "right"), ("target", "wrong"), ("target", "half"), ("dft", "wrong"), ("beyond_log", "wrong"),
    ],
}  # fmt: skip


def test_the_guide_shows_the_whole_table_and_the_verdict():
    page = (REPO / "docs" / "which_target.md").read_text(encoding="utf-8")
    for part in (table(SCORES, PICK), table(SCORES, JUDGE), verdict(SCORES)):
        assert part in page, f"docs/which_target.md lacks\n{part}"


@pytest.mark.parametrize("bullet", FIGURES)
def test_the_readme_shows_means_of_the_committed_runs(bullet):
    (line,) = (line for line in (REPO / "README.md").read_text(encoding="utf-8").splitlines() if bullet in line)
    for method, world in FIGURES[bullet]:
        values = averages(SCORES, PICK, world, method)
        assert len(values) == len(PICK)
        assert f" {np.mean(values):.1f}" in line, (method, world)
