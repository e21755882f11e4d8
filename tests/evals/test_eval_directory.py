"""An evaluation's files: torn lines are cut; damage and the generations of other settings are named."""

import pytest

from qsft.evals.eval_directory import EvalDirectory, TaskSettings
from qsft.evals.grading.grade import Grade
from qsft.evals.protocol import Protocol
from qsft.evals.report import summarize
from qsft.evals.task_run import TaskRun
from qsft.evals.tasks import Problem, Task
from qsft.inference.sampling import Generation

GENERATIONS = [Generation(problem, sample, f"text {sample} é\n", 3, "stop") for problem in "ab" for sample in range(2)]
KEYS = [generation.key for generation in GENERATIONS]
PROBLEMS = [Problem("a", "1+1", "2"), Problem("b", "which?", "A", {"A": "x", "B": "y"})]
MODEL = {"model": "m", "context": 64, "backend": "transformers", "dtype": "float32", "reproducible": True}


def make_run(name="t", prompt=lambda problem: problem.question):
    return TaskRun(Task(name, prompt=prompt), PROBLEMS, Protocol(num_samples=2))


def made_by(run):
    return {"model": "weights", **run.sampling_settings()}


def start(directory, *runs):
    """An evaluation's files with the settings of runs."""
    files = EvalDirectory(directory)
    settings = {
        run.name: TaskSettings(MODEL, made_by(run), run.protocol.record(), run.task.facts(), len(PROBLEMS))
        for run in runs
    }
    files.write_settings(settings)
    for run in runs:
        files.write_problems(run.name, PROBLEMS)
    return files


def write_generations(files, run, generations=GENERATIONS):
    digests = run.sample_digests(made_by(run))
    records = ({**one.record(), "settings": digests[one.problem]} for one in generations)
    list(files.generations.append(run.name, records))


RUN = make_run()


@pytest.fixture
def files(tmp_path):
    files = start(tmp_path, RUN)
    write_generations(files, RUN)
    return files


def test_a_torn_last_line_is_cut_and_the_rest_is_kept(files):
    path = files.path / "generations" / "t.jsonl"
    whole = path.read_bytes()
    for cut in range(1, 60):
        path.write_bytes(whole[:-cut])
        files.generations.repair("t")
        assert path.read_bytes() == b"".join(whole[:-cut].splitlines(keepends=True)[:3])
        assert list(files.generations.read("t")) == KEYS[:3]


def test_what_is_missing_is_named(tmp_path):
    files = start(tmp_path, RUN)
    write_generations(files, RUN, GENERATIONS[:3])
    with pytest.raises(ValueError, match=r"3 of 4 samples.*problem b, sample 1 is missing"):
        files.complete_generations(RUN)


def test_damage_and_the_generations_of_other_settings_are_named(files):
    assert files.complete_generations(RUN) == GENERATIONS
    path = files.path / "generations" / "t.jsonl"
    whole = path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"problem a, sample 0 was drawn with other settings"):
        files.complete_generations(make_run(prompt=lambda problem: problem.question.replace("1+1", "1 + 1")))
    path.write_text(whole.replace("text 1", "text 7", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"t.jsonl: record 2 is damaged"):
        files.complete_generations(RUN)
    lines = whole.splitlines(keepends=True)
    path.write_text("".join([lines[0], "{broken\n", *lines[1:]]), encoding="utf-8")
    with pytest.raises(ValueError, match=r"t.jsonl:2: not valid JSON"):
        files.complete_generations(RUN)


def test_a_broken_settings_file_is_named(files):
    assert files.settings()["t"].made_by["num_samples"] == 2
    path = files.path / "settings.json"
    whole = path.read_text(encoding="utf-8")
    changed = whole.replace('"num_samples": 2', '"num_samples": 3', 1)
    for broken in (whole[:-9], "[]", "null", '{"t": 3}', '{"t": {}}', changed):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(ValueError, match=r"settings.json: .*--overwrite"):
            files.settings()


def test_a_result_is_read_as_it_was_written(files):
    grades = {key: Grade(key[1] == 0, answer="2") for key in KEYS}
    files.write_grades("t", grades)
    result = summarize(files.path).results["t"]
    assert (result.generations, result.grades, result.problems) == (GENERATIONS, list(grades.values()), PROBLEMS)
    path = files.path / "grades" / "t.jsonl"
    path.write_text(path.read_text("utf-8").replace("true", "false", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"t.jsonl: record 1 is damaged.*--rescore"):
        summarize(files.path)


def test_discarded_tasks_are_moved_aside(files):
    other = make_run("other")
    write_generations(files, other)
    moved = files.discard(["t"])
    assert moved == files.path.with_name(f"{files.path.name}.previous") / "1"
    assert (moved / "generations" / "t.jsonl").is_file()
    assert not files.generations.has_records("t")
    assert files.generations.has_records("other")


@pytest.mark.parametrize("name", ["../../escape", "a/b", ".hidden", "a.rank5"])
def test_names_that_leave_the_directory_or_look_like_a_part_raise(tmp_path, name):
    files = EvalDirectory(tmp_path)
    with pytest.raises(ValueError, match="cannot name a file of results"):
        files.generations.read(name)
    with pytest.raises(ValueError, match="cannot name a file of results"):
        files.write_grades(name, {})


def test_names_with_characters_of_patterns_are_just_names(tmp_path):
    odd = make_run("a[1]")
    plain = make_run("a")
    files = start(tmp_path, odd, plain)
    write_generations(files, odd, GENERATIONS[::-1])
    write_generations(files, plain, GENERATIONS[:1])
    assert files.complete_generations(odd) == GENERATIONS
    assert list(files.generations.read("a")) == KEYS[:1]
