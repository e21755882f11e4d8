import json
from datetime import datetime, timedelta

import pytest
from datasets import Dataset, DatasetDict

from qsft.cli import run_command
from qsft.teacher.cache import TeacherCache


@pytest.fixture
def qsft():
    """Run `qsft cache ...` as the command line does."""
    return lambda *words: run_command(["cache", *map(str, words)])


@pytest.fixture
def data(tmp_path, documents):
    Dataset.from_list(documents(20)).save_to_disk(tmp_path / "data")
    return tmp_path / "data"


def test_build_info_verify(qsft, teacher, data, tmp_path, capsys):
    out = tmp_path / "cache"
    build = ("build", "--dataset_path", data, "--teacher", teacher, "--output_dir", out)
    options = ("--top_k", 8, "--cache_encoding", "compact", "--top_p", 0.9, "--batch_tokens", 256)
    assert qsft(*build, *options) == 0
    assert "compact, k=8, top_p=0.9" in capsys.readouterr().out
    assert qsft("info", out) == 0
    output = capsys.readouterr().out
    for words in (str(teacher), "float32", "320 entries", "documents", "bytes per label token", "encoding kl", "torch"):
        assert words in output
    assert qsft("verify", out, "--teacher", teacher, "--sample", 4) == 0
    output = capsys.readouterr().out
    assert "all sound" in output
    for words in ("-1", "+0", "+1", "same top-1", "4 documents", "aligned: the log-probs at shift 0", "95% confidence"):
        assert words in output


def test_verify_reports_another_teacher_by_its_exit_code(qsft, teacher, data, tmp_path, tiny_model, capsys):
    out = tmp_path / "cache"
    qsft("build", "--dataset_path", data, "--teacher", teacher, "--output_dir", out, "--top_k", 8)
    tiny_model(seed=1).save_pretrained(tmp_path / "other")
    assert qsft("verify", out, "--teacher", tmp_path / "other") == 1
    output = capsys.readouterr().out
    assert "NOT aligned" in output
    assert "note: the cache holds the log-probs of" in output


def test_verify_names_and_drops_a_damaged_shard(qsft, teacher, data, tmp_path, capsys):
    out = tmp_path / "cache"
    build = ("build", "--dataset_path", data, "--teacher", teacher, "--output_dir", out, "--top_k", 8)
    qsft(*build)
    [shard] = out.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes()[:-1])
    assert qsft("verify", out) == 1
    output = capsys.readouterr()
    assert shard.name in output.out
    assert "1/1 shards" in output.err
    assert qsft("verify", out, "--drop") == 1
    assert "0 documents are left" in capsys.readouterr().out
    assert qsft(*build) == 0
    assert qsft("verify", out) == 0


def test_json_lines_and_parquet_are_data_sets_too(qsft, teacher, documents, tmp_path):
    rows = documents(5)
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Dataset.from_list(rows).to_parquet(tmp_path / "data.parquet")
    for name in ("data.jsonl", "data.parquet"):
        out = tmp_path / f"cache of {name}"
        qsft("build", "--dataset_path", tmp_path / name, "--teacher", teacher, "--output_dir", out, "--top_k", 8)
        assert TeacherCache(out).missing(rows) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["build"], "--dataset_path, --teacher, --output_dir not given"),
        (["build", "recipe.yaml", "--top_k", "8"], "--top_k belongs to a build without a recipe.*teacher_top_k"),
        (["info", "/nowhere"], "there is no teacher cache /nowhere"),
    ],
)
def test_wrong_options_are_explained(qsft, words, message):
    with pytest.raises(ValueError, match=message):
        qsft(*words)


def test_wrong_data_sets_are_explained(qsft, teacher, tmp_path):
    Dataset.from_list([{"text": "a"}]).save_to_disk(tmp_path / "text")
    DatasetDict(train=Dataset.from_list([{"text": "a"}])).save_to_disk(tmp_path / "splits")
    for name, message in (
        ("text", "needs the columns 'input_ids', 'labels'"),
        ("splits", "needs the column"),
        ("x.csv", "not a data"),
    ):
        with pytest.raises(ValueError, match=message):
            qsft("build", "--dataset_path", tmp_path / name, "--teacher", teacher, "--output_dir", tmp_path / "c")


@pytest.fixture
def default_caches(tmp_path, monkeypatch, build, documents, teacher, tiny_model, tiny_tokenizer):
    """Two caches in the default root, the second last used 100 days ago."""
    from qsft.teacher.format import complete

    root = tmp_path / "root" / "teachers"
    root.mkdir(parents=True)
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path / "root"))
    build(Dataset.from_list(documents(5)), "root/teachers/fresh-0123", teacher=teacher)
    tiny_model(seed=1).save_pretrained(tmp_path / "old teacher")
    with monkeypatch.context() as patch:
        patch.setattr(complete, "datetime", LongAgo)
        build(documents(5), "root/teachers/old-4567", teacher=tmp_path / "old teacher")
    return root


class LongAgo(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) - timedelta(days=100)


def test_list_names_teacher_size_last_use_and_data(qsft, default_caches, teacher, capsys):
    assert qsft("list") == 0
    text = capsys.readouterr().out
    old = text.index("old-4567")
    fresh = text.index("fresh-0123")
    assert old < fresh  # the least recently used first
    assert f"{teacher} (float32, exact, k=8)" in text
    assert "5 documents" in text
    assert datetime.now().astimezone().strftime("%Y-%m-%d") in text[fresh:]
    assert (datetime.now().astimezone() - timedelta(days=100)).strftime("%Y-%m-%d") in text[old:fresh]
    assert "2 caches" in text


def test_list_of_an_empty_root_says_where_it_looked(qsft, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("QSFT_CACHE", str(tmp_path))
    assert qsft("list") == 0
    assert f"there are no teacher caches in {tmp_path / 'teachers'}" in capsys.readouterr().out


def test_prune_asks_and_removes_by_age_or_name(qsft, default_caches, monkeypatch, capsys):
    with pytest.raises(ValueError, match="nothing selected"):
        qsft("prune")
    (default_caches / "old-4567" / "notes.txt").write_text("not ours")
    monkeypatch.setattr("builtins.input", lambda question: "n")
    assert qsft("prune", "--older_than", 90) == 1
    assert len(list(default_caches.iterdir())) == 2
    monkeypatch.setattr("builtins.input", lambda question: "y")
    assert qsft("prune", "--older_than", 90) == 0
    assert "removed 1 cache, " in capsys.readouterr().out
    assert [path.name for path in (default_caches / "old-4567").iterdir()] == ["notes.txt"]
    assert qsft("prune", "--name", "nobody", "--yes") == 0
    assert (default_caches / "fresh-0123").is_dir()
    assert qsft("prune", "--name", "fresh", "--yes") == 0
    assert not (default_caches / "fresh-0123").exists()


def test_a_cache_in_use_is_not_old(qsft, default_caches, build, documents, tmp_path, capsys):
    build(documents(5), "root/teachers/old-4567", teacher=tmp_path / "old teacher")
    assert qsft("prune", "--older_than", 90, "--yes") == 0
    assert "matches" in capsys.readouterr().out
    assert len(list(default_caches.iterdir())) == 2


def test_prune_without_a_terminal_removes_nothing(qsft, default_caches, monkeypatch):
    def no_terminal(question):
        raise EOFError

    monkeypatch.setattr("builtins.input", no_terminal)
    assert qsft("prune", "--older_than", 1) == 1
    assert len(list(default_caches.iterdir())) == 2
