"""Generations on disk: whole lines, torn ones cut, parts of several processes joined."""

import json

import pytest

from qsft.evals.request import Generation
from qsft.evals.store import Store
from qsft.jsonl import cut_torn_line

ROWS = [Generation(problem, sample, f"text {sample} é\n", 3, "stop") for problem in "ab" for sample in range(2)]
KEYS = [(row.problem, row.sample) for row in ROWS]


def test_a_torn_last_line_is_cut_and_the_rest_is_kept(tmp_path):
    store = Store(tmp_path)
    assert list(store.append("t", ROWS)) == ROWS
    path = tmp_path / "generations" / "t.jsonl"
    whole = path.read_bytes()
    for cut in range(1, 60):
        path.write_bytes(whole[:-cut])
        store.repair("t")
        assert path.read_bytes() == b"".join(whole[:-cut].splitlines(keepends=True)[:3])
        assert list(store.generations("t")) == KEYS[:3]


@pytest.mark.parametrize("content", [b"", b"\n", b"torn", b"x" * 200_000, b"a\n" + b"x" * 200_000])
def test_cutting_finds_the_last_newline_however_far_away(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    cut_torn_line(path)
    assert path.read_bytes() == content[: content.rfind(b"\n") + 1]


def test_parts_of_several_processes_become_one_file_in_order(tmp_path):
    list(Store(tmp_path, rank=0).append("t", ROWS[2:][::-1]))
    list(Store(tmp_path, rank=1).append("t", ROWS[:2]))
    list(Store(tmp_path).append("other", ROWS[:1]))
    assert Store(tmp_path).finish("t", KEYS) == ROWS
    assert sorted(path.name for path in (tmp_path / "generations").iterdir()) == ["other.jsonl", "t.jsonl"]
    rows = (tmp_path / "generations" / "t.jsonl").read_text(encoding="utf-8").splitlines()
    assert [(row["problem"], row["sample"]) for row in map(json.loads, rows)] == KEYS


def test_what_is_missing_is_named(tmp_path):
    store = Store(tmp_path)
    list(store.append("t", ROWS[:3]))
    with pytest.raises(ValueError, match=r"3 of 4 samples.*problem b, sample 1 is missing"):
        store.finish("t", KEYS)


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    store = Store(tmp_path)
    list(store.append("t", ROWS))
    path = tmp_path / "generations" / "t.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([lines[0], "{broken\n", *lines[1:]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"t.jsonl:2: not a JSON line"):
        store.generations("t")


def test_without_a_directory_everything_stays_in_memory():
    store = Store(None)
    list(store.append("t", ROWS[::-1]))
    assert store.finish("t", KEYS) == ROWS


def test_files_of_the_first_version_are_read(tmp_path):
    rows = [
        {"document": row.problem, "sample": row.sample, "text": row.text, "tokens": 3, "finish": "stop"} for row in ROWS
    ]
    path = tmp_path / "generations" / "t.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert Store(tmp_path).finish("t", KEYS) == ROWS
