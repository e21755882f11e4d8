"""Directories that the demo keeps between runs: complete or absent."""

import pytest

from qsft.demo import kept


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path))
    return tmp_path / "demo"


def fill(directory):
    (directory / "weights").write_bytes(b"123456")
    return {"steps": 7}


def keep_thing():
    path = kept.kept_path("thing", {"a": 1})
    kept.keep(path, fill)
    return path


def test_a_kept_directory_is_intact_and_has_its_notes(home):
    path = keep_thing()
    assert path.parent == home
    assert kept.is_intact(path)
    assert kept.read_notes(path) == {"steps": 7}


def test_other_ingredients_have_another_path(home):
    assert kept.kept_path("thing", {"a": 1}) != kept.kept_path("thing", {"a": 2})
    assert kept.kept_path("thing", {"a": 1, "b": 2}) == kept.kept_path("thing", {"b": 2, "a": 1})


@pytest.mark.parametrize("damage", ["altered", "removed", "damaged seal", "no seal"])
def test_damage_is_detected_and_repaired(home, damage):
    path = keep_thing()
    match damage:
        case "altered":
            (path / "weights").write_bytes(b"123457")
        case "removed":
            (path / "weights").unlink()
        case "damaged seal":
            (path / kept.SEAL).write_text("[]")
        case "no seal":
            (path / kept.SEAL).unlink()
    assert not kept.is_intact(path)
    assert kept.is_intact(keep_thing())


def test_a_failure_leaves_nothing_behind(home):
    def fail(directory):
        fill(directory)
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        kept.keep(kept.kept_path("thing", {"a": 1}), fail)
    assert list(home.iterdir()) == []


def test_an_intact_directory_is_not_replaced(home):
    path = keep_thing()
    kept.keep(path, fill)
    assert kept.is_intact(path)
    assert list(home.iterdir()) == [path]
