import json
import os

import pytest

from qsft.teacher import location
from qsft.teacher.capture import rendezvous
from qsft.teacher.capture.capture import build_cache
from qsft.teacher.location import cache_home, default_cache_directory
from qsft.teacher.sources.transformers_source import TransformersSource

WHERE = {"top_k": 8, "cache_encoding": "exact"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("QSFT_CACHE", "QSFT_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_caches_are_in_the_users_cache_directory_unless_set_otherwise(home, monkeypatch):
    assert cache_home() == home / ".cache" / "qsft"
    for name, place in (("XDG_CACHE_HOME", "x/qsft"), ("QSFT_HOME", "q/caches"), ("QSFT_CACHE", "c")):
        monkeypatch.setenv(name, str(home / place.split("/")[0]))
        assert cache_home() == home / place


def test_every_identity_has_its_own_folder_and_keeps_it(teacher, tiny_model, tiny_tokenizer, home):
    def place(model=teacher, **options):
        return default_cache_directory(TransformersSource(model), tiny_tokenizer, **WHERE | options)

    first = place()
    assert first.parent == home / ".cache" / "qsft" / "teachers"
    assert first.name.startswith("teacher-")
    others = [
        place(top_k=4),
        place(cache_encoding="compact"),
        place(top_p=0.9),
        place(tiny_model()),
        place(tiny_model(seed=1)),
    ]
    assert len({first, *others}) == 6
    assert place() == first
    assert not home.exists()  # asking makes nothing
    config = json.loads((teacher / "config.json").read_text())
    (teacher / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert place() != first


def test_a_cache_of_another_format_is_not_in_the_way(teacher, tiny_tokenizer, monkeypatch):
    place = default_cache_directory(TransformersSource(teacher), tiny_tokenizer, **WHERE)
    monkeypatch.setattr(location, "VERSION", location.VERSION + 1)
    assert default_cache_directory(TransformersSource(teacher), tiny_tokenizer, **WHERE) != place


def test_a_models_directory_is_no_place_for_a_cache(teacher, documents, build, tiny_tokenizer):
    """The shards would count among the model's weight files: after its own capture it would be another teacher."""
    with pytest.raises(ValueError, match=r"teacher holds a model.*directory of its own"):
        build_cache(documents(3), teacher, teacher, tokenizer=tiny_tokenizer, progress=False)
    assert not (teacher / "manifest.json").exists()
    cache = build(documents(3))
    (cache.path / "config.json").write_text("{}")  # a model that was saved beside an old cache does no harm
    build(documents(4))


def test_a_capture_on_nodes_that_share_no_directory_is_rejected_on_each(
    tmp_path, documents, tiny_model, build, fork, monkeypatch
):
    """Two processes of one launch, each with a directory of its own: nobody waits for ever, nothing is mixed."""
    monkeypatch.setattr(rendezvous, "ARRIVAL_SECONDS", 1.0)
    data = documents(30)
    model = tiny_model()

    def node(rank):
        def work():
            try:
                build(data, f"node{rank}", teacher=model)
            except ValueError as error:
                (tmp_path / f"{rank}.txt").write_text(str(error))

        return fork(work, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="node0", MASTER_PORT="7")

    assert [os.waitpid(child, 0)[1] for child in [node(0), node(1)]] == [0, 0]
    assert "process 1 has shown no sign of life" in (tmp_path / "0.txt").read_text()
    assert "process 1 does not see in" in (tmp_path / "1.txt").read_text()
    assert all("on a file system they share" in (tmp_path / f"{rank}.txt").read_text() for rank in (0, 1))
    assert not list((tmp_path / "node1").glob("*.safetensors"))  # rejected before its teacher ran
    assert build(data, "node0", teacher=model).missing(data) == []  # the first one's half is kept
