"""Each closed form is where gradient flow on the expected loss really ends."""

import pytest
import torch

from qsft import fixed_point, make_target, target_loss
from qsft.targets.view import Full

V = 5
CASES = [
    ("sft", {}),
    ("kd", {}),
    ("kd", {"temperature": 0.5}),
    ("kd_hybrid", {"c": 0.3}),
    ("label_smoothing", {"lam": 0.2}),
    ("sft_kl", {"lam": 0.5}),
    ("gem", {"beta": 0.7}),
    ("target_sft", {"eta": 0.5}),
    ("target_sft", {"eta": 1.0}),
    ("target_sft", {"eta": 0.3}),
]


IDS = [f"{n}-{h}" for n, h in CASES]


def expected_gradient(target, z, d, teacher):
    """Σ_y d_y·∂L(y)/∂z at one context; every label y is one row weighted by d_y."""
    rows = z.expand(V, V).clone().requires_grad_()
    loss = target_loss(rows, torch.arange(V), target, Full(teacher.log().expand(V, V)))
    return d @ torch.autograd.grad(loss, rows)[0]


def flow(target, d, teacher, steps=2000):
    """Gradient descent on the expected loss."""
    z = torch.zeros(V, dtype=torch.float64)
    for _ in range(steps):
        step = expected_gradient(target, z, d, teacher)
        z = z - 2.0 * step
        if step.abs().max() < 1e-9:
            break
    return z.softmax(-1)


@pytest.fixture
def distributions():
    """Labels and a teacher, drawn at random: (d, teacher)."""
    g = torch.Generator().manual_seed(3)
    d = torch.rand(V, generator=g, dtype=torch.float64)
    teacher = torch.rand(V, generator=g, dtype=torch.float64) + 0.05
    return d / d.sum(), teacher / teacher.sum()


@pytest.mark.parametrize(("name", "hparams"), CASES, ids=IDS)
def test_the_expected_gradient_vanishes_at_the_closed_form_and_not_beside_it(name, hparams, distributions):
    target = make_target(name, **hparams)
    z = fixed_point(target, *distributions).log()
    assert expected_gradient(target, z, *distributions).abs().max() < 1e-12
    beside = torch.linspace(-0.1, 0.1, V, dtype=torch.float64)
    assert expected_gradient(target, z + beside, *distributions) @ beside > 1e-5  # descent leads back


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hparams"), CASES, ids=IDS)
def test_gradient_flow_ends_at_the_closed_form(name, hparams, distributions):
    target = make_target(name, **hparams)
    torch.testing.assert_close(flow(target, *distributions), fixed_point(target, *distributions), rtol=0, atol=1e-5)


def test_target_sft_sharpens_where_kd_mixes():
    """Product of experts: a token that labels and teacher both favor ends above both."""
    d = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    teacher = torch.tensor([0.8, 0.1, 0.1], dtype=torch.float64)
    assert fixed_point(make_target("target_sft"), d, teacher)[0] > 0.95
    assert fixed_point(make_target("kd_hybrid", c=0.5), d, teacher)[0] == pytest.approx(0.75)


def test_a_label_that_always_occurs_takes_everything():
    d = torch.tensor([1.0, 0.0], dtype=torch.float64)
    teacher = torch.tensor([0.1, 0.9], dtype=torch.float64)
    assert fixed_point(make_target("target_sft"), d, teacher).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("name", ["dft", "profit", "iw_sft", "psft", "asft"])
def test_unknown_closed_forms_are_none(name):
    assert fixed_point(make_target(name), torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5])) is None
