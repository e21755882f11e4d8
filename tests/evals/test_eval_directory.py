"""An evaluation's files: torn lines cut, damage and other settings' generations named, the first version's read."""

import json

import pytest

from qsft.evals.eval_directory import EvalDirectory, TaskRun, read_result
from qsft.evals.grade import Grade
from qsft.evals.protocol import Protocol
from qsft.evals.stats import Result
from qsft.evals.tasks import Problem, Task
from qsft.inference.sampling import Generation

ROWS = [Generation(problem, sample, f"text {sample} é\n", 3, "stop") for problem in "ab" for sample in range(2)]
KEYS = [(row.problem, row.sample) for row in ROWS]
PROBLEMS = [Problem("a", "1+1", "2"), Problem("b", "which?", "A", {"A": "x", "B": "y"})]


def make_run(name="t", ask=lambda problem: problem.question):
    return TaskRun(Task(name, prompt=ask), PROBLEMS, Protocol(num_samples=2))


RUN = make_run()


def start(directory, *runs):
    """An evaluation's files with the settings of runs."""
    files = EvalDirectory(directory)
    about = {"about": {}, "protocol": {}, "limit": 2}
    files.write_settings({run.name: {**about, "made_by": {"seed": 0, **run.record()}} for run in runs or [RUN]})
    return files


@pytest.fixture
def drawn(tmp_path):
    assert list(start(tmp_path).append(RUN, ROWS)) == ROWS
    return tmp_path / "generations" / "t.jsonl"


def test_a_torn_last_line_is_cut_and_the_rest_is_kept(drawn, tmp_path):
    files, whole = EvalDirectory(tmp_path), drawn.read_bytes()
    for cut in range(1, 60):
        drawn.write_bytes(whole[:-cut])
        files.generations.repair("t")
        assert drawn.read_bytes() == b"".join(whole[:-cut].splitlines(keepends=True)[:3])
        assert list(files.drawn(RUN)) == KEYS[:3]


def test_what_is_missing_is_named(tmp_path):
    files = start(tmp_path)
    list(files.append(RUN, ROWS[:3]))
    with pytest.raises(ValueError, match=r"3 of 4 samples.*problem b, sample 1 is missing"):
        files.finish(RUN)


def test_damage_and_the_generations_of_other_settings_are_named(drawn, tmp_path):
    files, whole = EvalDirectory(tmp_path), drawn.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"problem a, sample 0 was drawn with other settings"):
        files.drawn(make_run(ask=lambda problem: problem.question.replace("1+1", "1 + 1")))
    drawn.write_text(whole.replace("text 1", "text 7", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"problem a, sample 1 is damaged"):
        files.drawn(RUN)
    lines = whole.splitlines(keepends=True)
    drawn.write_text("".join([lines[0], "{broken\n", *lines[1:]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"t.jsonl:2: not valid JSON"):
        files.drawn(RUN)


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
    result = Result("t", 2, ROWS, [Grade(row.sample == 0, answer="2") for row in ROWS], PROBLEMS)
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
    assert start(tmp_path).finish(RUN) == ROWS
    assert read_result(tmp_path, "t").generations == ROWS


@pytest.mark.parametrize("name", ["../../escape", "a/b", ".hidden", "a.rank5"])
def test_names_that_leave_the_directory_or_look_like_a_part_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="cannot name a file of results"):
        start(tmp_path, make_run(name)).drawn(make_run(name))


def test_names_with_signs_of_patterns_are_just_names(tmp_path):
    odd, plain = make_run("a[1]"), make_run("a")
    files = start(tmp_path, odd, plain)
    list(files.append(odd, ROWS[::-1]))
    list(files.append(plain, ROWS[:1]))
    assert files.finish(odd) == ROWS
    assert list(files.drawn(plain)) == KEYS[:1]
