import pytest
import torch

from qsft.explore import target_grid
from qsft.explore.target_grid import closed_form, descend
from qsft.targets.registry import make_target

P = target_grid.student_probs(torch.tensor(target_grid.P_GRID[::4], dtype=torch.float64))
T = target_grid.teacher_probs(torch.full((len(P),), 0.4, dtype=torch.float64))


@pytest.mark.parametrize(
    ("name", "hparams"),
    [
        ("sft", {}),
        ("kd", {}),
        ("kd_hybrid", {"c": 0.3}),
        ("label_smoothing", {}),
        ("sft_kl", {}),
        ("gem", {}),
        ("target_sft", {"eta": 0.3}),
        ("target_sft", {"eta": 1.0}),
    ],
)
def test_descent_from_anywhere_ends_where_the_closed_form_says(name, hparams):
    target = make_target(name, **hparams)
    closed = closed_form(target, T)
    assert torch.allclose(descend(target, P, T), closed.expand_as(P), atol=1e-3)


def test_the_p_loss_goes_to_the_most_frequent_token():
    assert closed_form(make_target("dft"), T) is None
    end = descend(make_target("dft"), P, T)
    assert torch.allclose(end[:, 0], torch.ones(len(P)).double(), atol=1e-2)


def test_a_threshold_leaves_a_student_that_doubts_everything_where_it_is():
    flat = torch.full((1, 6), 1 / 6, dtype=torch.float64)
    assert torch.allclose(descend(make_target("profit", tau=0.5), flat, T[:1]), flat)


def test_students_are_distributions_and_the_top_k_leaves_out_an_unlikely_label():
    assert torch.allclose(P.sum(dim=-1), torch.ones(len(P)).double())
    unlikely = target_grid.kept_tokens(target_grid.teacher_probs(torch.tensor([0.01, 0.5], dtype=torch.float64)))
    assert 0 not in unlikely.ids[0]
    assert 0 in unlikely.ids[1]
