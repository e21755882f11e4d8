"""Gumbel noise: its distribution, and that it is a function of its key."""

import pytest
import torch

from qsft.inference.noise import gumbel
from qsft.inference.sampling import sample_key


def test_noise_is_gumbel_and_a_function_of_its_key():
    keys = torch.tensor([sample_key(0, "a", 0), sample_key(0, "a", 1), sample_key(0, "b", 0), sample_key(1, "a", 0)])
    noise = gumbel(keys, torch.full_like(keys, 3), 50_000)
    assert torch.equal(noise[1:2], gumbel(keys[1:2], torch.tensor([3]), 50_000))
    assert torch.isfinite(noise).all()
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.03)
    others = [noise[0], noise[1], noise[2], noise[3], gumbel(keys[:1], torch.tensor([4]), 50_000)[0], noise[0].roll(1)]
    correlation = torch.corrcoef(torch.stack(others)) - torch.eye(len(others))
    assert correlation.abs().max() < 0.02
