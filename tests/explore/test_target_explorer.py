import base64
import gzip
import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qsft.explore
from qsft.explore import target_grid
from qsft.explore.target_explorer import targets_page
from qsft.targets.registry import TARGETS
from qsft.targets.target import LossTarget, Target
from qsft.targets.trust import Constant


def carried(html):
    """The data that a page carries."""
    blob = re.search(r'id="blob-data">([^<]*)<', html).group(1)
    return json.loads(gzip.decompress(base64.b64decode(blob)))


def half(logits, labels):
    return 0.5 * F.cross_entropy(logits, labels, reduction="none")


def test_the_users_targets_come_first():
    html = qsft.explore.targets_page([Target(Constant(0.5)), LossTarget(half), "sft"], named=False)
    names = [target["name"] for target in carried(html)["targets"]]
    assert names == ["yours: γ = 0.5, π̃ = –, scale = 1", "yours: half", "sft"]


def test_the_table_in_the_page_is_the_targets_own():
    (shown,) = carried(targets_page([LossTarget(half)], named=False))["targets"]
    table = np.frombuffer(base64.b64decode(shown["points"]), dtype="<f4").reshape(len(target_grid.P_GRID), -1)
    assert table[:, 0] == pytest.approx(-0.5 * np.log(target_grid.P_GRID), rel=1e-5)
    q = torch.from_numpy(table[:, 2:8].copy())
    assert torch.allclose(q.sum(dim=-1), torch.ones(len(q)), atol=1e-5)


@pytest.mark.slow
def test_the_whole_table_of_targets_fits_a_page():
    html = targets_page()
    assert [target["name"] for target in carried(html)["targets"]] == list(TARGETS)
    assert len(html.encode()) < 6e6


def test_a_page_without_targets_raises():
    with pytest.raises(ValueError, match="no target"):
        targets_page(named=False)


def test_html_in_a_name_stays_text():
    def evil():
        """<script>window.hacked=1</script>"""
        return Target(Constant(1.0))

    assert "hacked" not in targets_page([evil], named=False)


def test_curves_for_a_notebook_are_the_tables_columns():
    fig = qsft.explore.curves_figure({"half": LossTarget(half), "kd": TARGETS["kd"]()}, teacher_p=0.6)
    assert [trace.name for trace in fig.data] == ["half"] * 5 + ["kd"] * 5
    assert np.array(fig.data[0].y) == pytest.approx(-0.5 * np.log(target_grid.P_GRID))
    assert fig.data[6].y[0] == pytest.approx(0.6 / (0.6 + 0.4 * 0.85))  # beside y the teacher keeps a, b, c
