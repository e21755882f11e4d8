import itertools

import pytest
import torch
import torch.nn.functional as F

from qsft.explore import explorer
from qsft.explore.explorer import SITUATION, VALUES, Axis, evaluate, situation_of, tabulate
from qsft.losses.reference import target_loss
from qsft.targets.registry import TARGETS
from qsft.targets.target import LossTarget, Target
from qsft.targets.trust import Constant
from qsft.targets.view import SideInputs

V = len(explorer.TOKENS)


def by_reference(target, situation, point):
    """Loss and gradient of one point, from the package's reference loss and autograd."""
    at = {axis.name: torch.tensor([float(value)], dtype=torch.float64) for axis, value in zip(situation, point)}
    logits = explorer.student_probs(at["p"]).log().requires_grad_()
    teacher = explorer.kept(explorer.teacher_probs(at["teacher"])) if "teacher" in at else None
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
    situation = tuple(Axis.of(a.name, "", a.values[::4], a.values[0]) for a in _situation(target))
    rows, _ = evaluate(target, situation)
    points = list(itertools.product(*(axis.values for axis in situation)))
    assert len(points) == len(rows)
    for point, row in zip(points, rows):
        loss, gradient = by_reference(target, situation, point)
        assert row[0].item() == pytest.approx(loss, abs=1e-9)
        assert torch.allclose(row[2 + V : 2 + 2 * V], gradient, atol=1e-9)
        assert row[2 : 2 + V].sum().item() == pytest.approx(1.0)
        assert row[2 + 2 * V :].sum().item() == pytest.approx(1.0)


def _situation(target):
    student = Axis.of("p", "", explorer.P_GRID, 0.3)
    return (student, *(Axis.of(name, *SITUATION[name]) for name in situation_of(target)))


def test_every_hyper_parameter_of_the_table_has_stops_and_starts_at_its_default():
    for name, named in TARGETS.items():
        for hyper_parameter in named.hyper_parameters:
            assert hyper_parameter in VALUES, f"{name}: give {hyper_parameter} its stops in VALUES"
    table = tabulate(TARGETS["gem"].build)
    assert [axis["values"][axis["start"]] for axis in table["hparams"]] == [0.7, "linear", 1.0]


def test_a_pair_the_row_refuses_says_why_and_holds_no_numbers():
    table = tabulate(TARGETS["kd"].build)
    refused = [i for i, why in enumerate(table["refused"]) if why]
    assert refused
    assert all("temperature" in table["refused"][i] for i in refused)
    assert table["rows"][refused].isnan().all()
    assert not table["rows"][[i for i in range(len(table["rows"])) if i not in refused]].isnan().any()


def test_a_users_loss_and_a_users_row_with_its_own_hyper_parameter():
    def focal(logits, labels):
        logp = F.log_softmax(logits, dim=-1).gather(-1, labels[:, None])[:, 0]
        return -((1 - logp.exp()) ** 2) * logp

    table = tabulate(lambda: LossTarget(focal))
    p = explorer.P_GRID[4]
    assert table["rows"][0, 4, 0].item() == pytest.approx(-((1 - p) ** 2) * torch.tensor(p).double().log().item())

    def mine(strength: float = 0.5):
        return Target(Constant(strength))

    assert tabulate(mine)["hparams"][0]["values"] == (0.125, 0.25, 0.5, 1.0, 2.0)
