"""Files are complete or not there, and JSON errors name file and line."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from qsft.files import (
    STALE_SECONDS,
    DiskFullError,
    check_writable,
    make_directory,
    publish,
    read_json,
    read_lines,
    remove_incomplete_line,
    shown,
    temporary_name,
    write_json,
    write_line,
    write_lines,
)


def test_many_writers_of_one_file_leave_one_whole_content(tmp_path):
    path = tmp_path / "a.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: write_json(path, {"writer": i, "text": "x" * 10_000}), range(64)))
    assert len(read_json(path, "")["text"]) == 10_000
    assert os.listdir(tmp_path) == ["a.json"]


def test_exclusive_publishing_has_one_winner(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: publish(tmp_path / "a", str(i), exclusive=True), range(16)))
    assert sum(won) == 1
    assert (tmp_path / "a").read_text() == str(won.index(True))


def test_numbers_that_do_not_exist_are_null(tmp_path):
    write_json(tmp_path / "deep" / "a.json", {"a": float("nan"), "b": [{"c": float("nan")}]})
    assert json.loads((tmp_path / "deep" / "a.json").read_text()) == {"a": None, "b": [{"c": None}]}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"null\n", "not a JSON object but NoneType"),
        (b"[1]\n", "not a JSON object but list"),
        (b'{"a": 1\n', "not valid JSON"),
        (b"[" * 100_000 + b"\n", "not valid JSON"),
        (b"\xff\xfe\n", "not UTF-8 text"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, why):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 0}\n' + line)
    with pytest.raises(ValueError, match=rf"a\.jsonl:2: {why}. Delete it"):
        list(read_lines(path, remedy="Delete it."))
    path.write_bytes(line)
    with pytest.raises(ValueError, match=rf"a\.jsonl: {why}. Restore it"):
        read_json(path, "Restore it.")


def test_an_incomplete_line_is_removed_and_the_rest_kept(tmp_path):
    path = tmp_path / "a.jsonl"
    write_lines(path, [{"a": 1}])
    with path.open("ab", buffering=0) as file:
        write_line(file, {"a": "x" * 70_000})
        file.write(b'{"a": "' + b"y" * 70_000)
    remove_incomplete_line(path)
    assert [len(str(row["a"])) for row in read_lines(path)] == [1, 70_000]


def test_only_our_own_old_leftovers_go(tmp_path):
    old = temporary_name(tmp_path / "a")
    fresh = temporary_name(tmp_path / "a")
    foreign = tmp_path / "thesis.tmp"
    for path in (old, fresh, foreign):
        path.touch()
    for path in (old, foreign):
        os.utime(path, (time.time() - 2 * STALE_SECONDS,) * 2)
    make_directory(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([fresh, foreign])


def test_a_temporary_file_that_was_cleaned_away_is_written_again(tmp_path, monkeypatch):
    replace = os.replace
    lost = []

    def lose_the_first(source, target):
        if not lost:
            lost.append(source)
            os.unlink(source)
        replace(source, target)

    monkeypatch.setattr(os, "replace", lose_the_first)
    assert publish(tmp_path / "a", "content")
    assert (tmp_path / "a").read_text() == "content"
    assert len(lost) == 1
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "missing" / "a", "content")


def test_a_clock_that_is_hours_ahead_removes_nothing(tmp_path, monkeypatch):
    alive = temporary_name(tmp_path / "a")
    alive.touch()
    monkeypatch.setattr(time, "time", lambda: 1e10)
    make_directory(tmp_path)
    assert alive.exists()


def test_a_file_in_the_way_is_named(tmp_path):
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match=r"the run .*a cannot be a directory: a file is in the way"):
        make_directory(tmp_path / "a", "the run")
    with pytest.raises(OSError, match="a file is in the way"):
        write_json(tmp_path / "a" / "b.json", {})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="cannot be written"):
        check_writable(tmp_path)


@pytest.mark.parametrize(("path", "name"), [("{here}/runs/a", "runs/a"), ("runs/a", "runs/a"), ("/x", "/x")])
def test_a_path_is_shown_from_where_the_user_is(path, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shown(path.format(here=tmp_path)) == name


def test_a_line_that_does_not_fit_on_the_disk_is_an_error_that_says_so():
    with pytest.raises(DiskFullError, match="no space left in /dev"), open("/dev/full", "ab", buffering=0) as file:
        write_line(file, {"problem": "a"})


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is a device, a pipe or a socket"):
        publish(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
