"""Examples in the docstrings of the whole package are run."""

import doctest
import importlib
import pkgutil

import pytest

import qsft

MODULES = [
    module.name for module in pkgutil.walk_packages(qsft.__path__, "qsft.") if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    assert sum(bool(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name))) >= 5
