"""An evaluation's files: torn lines cut, damage and other settings' generations named, the first version's read."""

import json

import pytest

from qsft.evals.eval_directory import EvalDirectory, read_result
from qsft.evals.grade import Grade
from qsft.evals.request import Generation
from qsft.evals.summary import Result
from qsft.evals.tasks import Problem

ROWS = [Generation(problem, sample, f"text {sample} é\n", 3, "stop") for problem in "ab" for sample in range(2)]
KEYS = [(row.problem, row.sample) for row in ROWS]
MADE_BY = {"a": "settings of a", "b": "settings of b"}


@pytest.fixture
def drawn(tmp_path):
    assert list(EvalDirectory(tmp_path).append("t", MADE_BY, ROWS)) == ROWS
    return tmp_path / "generations" / "t.jsonl"


def test_a_torn_last_line_is_cut_and_the_rest_is_kept(drawn, tmp_path):
    files, whole = EvalDirectory(tmp_path), drawn.read_bytes()
    for cut in range(1, 60):
        drawn.write_bytes(whole[:-cut])
        files.generations.repair("t")
        assert drawn.read_bytes() == b"".join(whole[:-cut].splitlines(keepends=True)[:3])
        assert list(files.drawn("t", MADE_BY)) == KEYS[:3]


def test_what_is_missing_is_named(tmp_path):
    files = EvalDirectory(tmp_path)
    list(files.append("t", MADE_BY, ROWS[:3]))
    with pytest.raises(ValueError, match=r"3 of 4 samples.*problem b, sample 1 is missing"):
        files.finish("t", MADE_BY, KEYS)


def test_damage_and_the_generations_of_other_settings_are_named(drawn, tmp_path):
    files, whole = EvalDirectory(tmp_path), drawn.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"problem a, sample 0 was drawn with other settings"):
        files.drawn("t", {**MADE_BY, "a": "those of another model"})
    drawn.write_text(whole.replace("text 1", "text 7", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"problem a, sample 1 is damaged"):
        files.drawn("t", MADE_BY)
    lines = whole.splitlines(keepends=True)
    drawn.write_text("".join([lines[0], "{broken\n", *lines[1:]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"t.jsonl:2: not valid JSON"):
        files.drawn("t", MADE_BY)


def test_a_broken_settings_file_is_named(tmp_path):
    files = EvalDirectory(tmp_path)
    files.write_settings({"t": {"about": {}, "made_by": {"n": 4}, "protocol": {}, "limit": 2}})
    assert files.settings()["t"]["made_by"] == {"n": 4}
    path = tmp_path / "settings.json"
    whole = path.read_text(encoding="utf-8")
    for broken in (whole[:-9], "[]", "null", '{"t": 3}', '{"t": {}}', whole.replace('"n": 4', '"n": 5')):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(ValueError, match=r"settings.json: .*--fresh"):
            files.settings()


def test_a_result_is_read_as_it_was_written(drawn, tmp_path):
    problems = [Problem("a", "1+1", "2"), Problem("b", "which?", "A", {"A": "x", "B": "y"})]
    result = Result("t", 2, ROWS, [Grade(row.sample == 0, answer="2") for row in ROWS], problems)
    EvalDirectory(tmp_path).write_result(result)
    assert read_result(tmp_path, "t") == result
    grades = tmp_path / "grades" / "t.jsonl"
    grades.write_text(grades.read_text("utf-8").replace("true", "false", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"t.jsonl:1: damaged.*--rescore"):
        read_result(tmp_path, "t")


def test_files_of_the_first_version_are_read(tmp_path):
    old = [
        {"document": one.problem, "sample": one.sample, "text": one.text, "tokens": 3, "finish": "stop"} for one in ROWS
    ]
    for name, rows in {"generations": old, "grades": [{**row, "correct": True} for row in old]}.items():
        (tmp_path / name).mkdir()
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / name / "t.jsonl").write_text(lines, encoding="utf-8")
    assert EvalDirectory(tmp_path).finish("t", MADE_BY, KEYS) == ROWS
    assert read_result(tmp_path, "t").generations == ROWS


@pytest.mark.parametrize("name", ["../../escape", "a/b", ".hidden", "a.rank5"])
def test_names_that_leave_the_directory_or_look_like_a_part_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a file of results"):
        EvalDirectory(tmp_path).drawn(name, {})


def test_names_with_signs_of_patterns_are_just_names(tmp_path):
    files = EvalDirectory(tmp_path)
    list(files.append("a[1]", MADE_BY, ROWS))
    list(files.append("a", MADE_BY, ROWS[:1]))
    assert files.finish("a[1]", MADE_BY, KEYS) == ROWS
    assert list(files.drawn("a", MADE_BY)) == KEYS[:1]


def test_without_a_directory_everything_stays_in_memory():
    files = EvalDirectory(None)
    list(files.append("t", {}, ROWS[::-1]))
    assert files.finish("t", {}, KEYS) == ROWS
