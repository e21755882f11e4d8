import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from qsft.explore import target_grid
from qsft.explore.target_grid import END, GRADIENT, LOSS, VALUES, Q, evaluate, situation_axes, tabulate
from qsft.losses.reference import target_loss
from qsft.targets.registry import TARGETS
from qsft.targets.target import LossTarget, Target
from qsft.targets.trust import Constant
from qsft.targets.view import SideInputs


def by_reference(target, situation, point):
    """Loss and gradient of one point, from the package's reference loss and autograd."""
    at = {axis.name: torch.tensor([float(value)], dtype=torch.float64) for axis, value in zip(situation, point)}
    logits = target_grid.student_probs(at["p"]).log().requires_grad_()
    teacher = target_grid.kept_tokens(target_grid.teacher_probs(at["teacher"])) if "teacher" in at else None
    side = SideInputs(
        ref_logp=at["ref_logp"].log() if "ref_logp" in at else None,
        old_logp=at["old_logp"].log() if "old_logp" in at else None,
        critical=at.get("critical"),
        document=torch.zeros(1, dtype=torch.int64),
    )
    loss = target_loss(logits, torch.tensor([0]), target, teacher, side=side)
    (gradient,) = torch.autograd.grad(loss, logits, allow_unused=True)
    return loss.item(), gradient[0]


@pytest.mark.parametrize("name", TARGETS)
def test_tables_hold_the_reference_loss_and_its_gradient(name):
    target = TARGETS[name]()
    situation = [replace(axis, values=axis.values[::4], start=0) for axis in situation_axes(target)]
    rows, _ = evaluate(target, situation)
    points = list(itertools.product(*(axis.values for axis in situation)))
    assert len(points) == len(rows)
    for point, row in zip(points, rows):
        loss, gradient = by_reference(target, situation, point)
        assert row[LOSS].item() == pytest.approx(loss, abs=1e-9)
        assert torch.allclose(row[GRADIENT:END], gradient, atol=1e-9)
        assert row[Q:GRADIENT].sum().item() == pytest.approx(1.0)
        assert row[END:].sum().item() == pytest.approx(1.0)


def test_every_hyper_parameter_of_a_named_target_has_slider_values_and_starts_at_its_default():
    for name, named in TARGETS.items():
        for hyper_parameter in named.hyper_parameters:
            assert hyper_parameter in VALUES, f"{name}: give {hyper_parameter} its slider values in VALUES"
    table = tabulate(TARGETS["gem"].build)
    assert [axis.values[axis.start] for axis in table.hyper_parameters] == [0.7, "linear", 1.0]


def test_an_invalid_combination_has_its_error_and_no_numbers():
    table = tabulate(TARGETS["kd"].build)
    invalid = [cell for cell in table.cells if cell.error]
    assert invalid
    assert all("temperature" in cell.error and cell.points.isnan().all() for cell in invalid)
    assert not any(cell.points.isnan().any() for cell in table.cells if not cell.error)


def test_a_users_loss_and_a_users_target_with_its_own_hyper_parameter():
    def focal(logits, labels):
        logp = F.log_softmax(logits, dim=-1).gather(-1, labels[:, None])[:, 0]
        return -((1 - logp.exp()) ** 2) * logp

    table = tabulate(lambda: LossTarget(focal))
    p = target_grid.P_GRID[4]
    assert table.cells[0].points[4, LOSS].item() == pytest.approx(
        -((1 - p) ** 2) * torch.tensor(p).double().log().item()
    )

    def mine(strength: float = 0.5):
        return Target(Constant(strength))

    assert tabulate(mine).hyper_parameters[0].values == (0.125, 0.25, 0.5, 1.0, 2.0)
