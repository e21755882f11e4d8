"""Examples in docstrings are run."""

import doctest
import importlib
import pkgutil

import pytest

import qsft.losses
import qsft.targets

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (qsft.targets, qsft.losses)
    for module in pkgutil.iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert sum(bool(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name))) >= 5
