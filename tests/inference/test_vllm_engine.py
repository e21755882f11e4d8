"""Starting an engine under a launcher: it sees one GPU and none of the launcher's variables."""

import os

import pytest

from qsft.inference.vllm_engine import LAUNCHER_VARIABLES, _without_launcher


@pytest.mark.parametrize(("visible", "own"), [(None, "1"), ("4,5", "5")])
def test_an_engine_sees_the_gpu_of_its_process_and_no_launcher(visible, own, monkeypatch):
    for name in LAUNCHER_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    before = dict(os.environ)
    with _without_launcher():
        assert not set(LAUNCHER_VARIABLES) & set(os.environ)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == own
    assert dict(os.environ) == before


def test_without_a_launcher_the_environment_stays(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    before = dict(os.environ)
    with _without_launcher():
        assert dict(os.environ) == before
