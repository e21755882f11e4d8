"""A context manager that runs a model in evaluation mode and restores its mode afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the body with `model.eval()`, without dropout; restore the previous mode on exit."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)
