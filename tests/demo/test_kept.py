import pytest

from qsft.demo import kept as store


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QSFT_HOME", str(tmp_path))
    return tmp_path / "demo"


def save(directory):
    (directory / "weights").write_bytes(b"123456")
    return {"steps": 7}


def kept(ingredients=None):
    path = store.place_of("thing", ingredients or {"a": 1})
    store.keep(path, save)
    return path


def test_what_is_kept_is_intact_and_remembers_what_was_said(home):
    path = kept()
    assert path.parent == home
    assert store.is_intact(path)
    assert store.remembered(path) == {"steps": 7}


def test_other_ingredients_have_another_place():
    assert store.place_of("thing", {"a": 1}) != store.place_of("thing", {"a": 2})
    assert store.place_of("thing", {"a": 1, "b": 2}) == store.place_of("thing", {"b": 2, "a": 1})


@pytest.mark.parametrize("harm", ["flip", "remove", "record", "no record"])
def test_damage_is_seen_and_repaired(harm):
    path = kept()
    match harm:
        case "flip":
            (path / "weights").write_bytes(b"123457")
        case "remove":
            (path / "weights").unlink()
        case "record":
            (path / store.RECORD).write_text("[]")
        case "no record":
            (path / store.RECORD).unlink()
    assert not store.is_intact(path)
    assert store.is_intact(kept())


def test_a_failure_leaves_nothing_behind(home):
    def fail(directory):
        save(directory)
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        store.keep(store.place_of("thing", {"a": 1}), fail)
    assert list(home.iterdir()) == []


def test_whoever_comes_second_accepts_what_is_there(home):
    path = kept()
    store.keep(path, save)
    assert store.is_intact(path)
    assert list(home.iterdir()) == [path]
