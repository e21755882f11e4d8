"""Sums of two digits as an evaluation task, and a model that learned some of them."""

import json
from contextlib import nullcontext

import pytest
from browser import browser, chromium  # noqa: F401  (fixtures)

SUMS = [(a, b) for a in range(10) for b in range(10)]


@pytest.fixture(scope="session")
def sum_directory(learned):
    """A model that knows a good part of the sums, and answers `so so \\boxed{7}` with some number of `so`."""
    return learned


@pytest.fixture(scope="session")
def sum_file(tmp_path_factory):
    """A task file of 40 sums."""
    path = tmp_path_factory.mktemp("tasks") / "sums.jsonl"
    chosen = [*SUMS[::5], *SUMS[1::5]]
    rows = [{"problem": f"{a} + {b} =", "answer": str(a + b)} for a, b in chosen]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def shared_judges(judges, monkeypatch):
    """Evaluations grade with the session's processes, which take seconds to start."""
    monkeypatch.setattr("qsft.evals.evaluate.Judges", lambda: nullcontext(judges))


@pytest.fixture
def command():
    """command("eval", "DIR", "--num_samples", "4"): the exit code of a command; its errors are raised."""
    from qsft.cli import run_command

    return lambda *words: run_command([str(word) for word in words])
