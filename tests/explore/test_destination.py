import pytest
import torch

from qsft.explore import grid
from qsft.explore.grid import closed_form, descend, destination
from qsft.targets.zoo import make_target

P = grid.student_probs(torch.tensor(grid.P_GRID[::4], dtype=torch.float64))
T = grid.teacher_probs(torch.full((len(P),), 0.4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "hparams"),
    [
        ("sft", {}),
        ("kd", {}),
        ("kd_hybrid", {"c": 0.3}),
        ("label_smoothing", {}),
        ("sft_kl", {}),
        ("gem", {}),
        ("target", {"eta": 0.3}),
        ("target", {"eta": 1.0}),
    ],
)
def test_descent_from_anywhere_ends_where_the_closed_form_says(name, hparams):
    target = make_target(name, **hparams)
    closed = closed_form(target, T)
    assert torch.allclose(descend(target, P, T), closed.expand_as(P), atol=1e-3)


def test_the_p_loss_goes_to_the_most_frequent_token():
    end, closed = destination(make_target("dft"), P, T)
    assert not closed
    assert torch.allclose(end[:, 0], torch.ones(len(P)).double(), atol=1e-2)


def test_a_threshold_leaves_a_student_that_doubts_everything_where_it_is():
    flat = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    end, _ = destination(make_target("profit", tau=0.5), flat, T[:1])
    assert torch.allclose(end, flat)


def test_the_world_is_made_of_distributions_and_the_cache_drops_an_unlikely_label():
    assert torch.allclose(P.sum(dim=-1), torch.ones(len(P)).double())
    unlikely = grid.kept(grid.teacher_probs(torch.tensor([0.01, 0.5], dtype=torch.float64)))
    assert 0 not in unlikely.ids[0]
    assert 0 in unlikely.ids[1]
