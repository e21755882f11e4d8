"""Tasks and their rows: what is read, and how bad input is named."""

import json

import pytest

from qsft.evals.problems import load_problems
from qsft.evals.tasks import GROUPS, TASKS, Problem, Task, find_tasks


def write(path, *rows):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def load(path, **changes):
    return load_problems(find_tasks(str(path))[0], **changes)


def test_the_papers_tasks():
    assert [task.published_problems for task in GROUPS["math"]] == [500, 272, 675, 30, 40]
    assert sum(task.published_problems for task in GROUPS["medical"]) == 11461
    assert len(find_tasks("math,medical")) == 15 == len(TASKS)
    assert [task.name for task in find_tasks("aime24,math500")] == ["aime24", "math500"]


def test_an_unknown_task_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown task 'aime42'. Did you mean 'aime24'\?"):
        find_tasks("aime42")


def test_local_files_have_the_fields_of_the_hub(tmp_path):
    write(tmp_path / "amc23.jsonl", {"question": "q", "answer": 27.0})
    write(tmp_path / "minerva.jsonl", {"problem": "p", "solution": r"so \boxed{1} or rather \boxed{4.5e33}"})
    write(tmp_path / "olympiadbench.jsonl", {"question": "q", "final_answer": ["$1$, $2$"]})
    gold = {name: load_problems(TASKS[name], tmp_path)[0].gold for name in ("amc23", "minerva", "olympiadbench")}
    assert gold == {"amc23": 27.0, "minerva": "4.5e33", "olympiadbench": "$1$, $2$"}


@pytest.mark.parametrize("solution", ["so it is 4", r"so \boxed{}"])
def test_a_solution_without_a_boxed_answer_is_named(tmp_path, solution):
    write(tmp_path / "minerva.jsonl", {"problem": "p", "solution": solution})
    with pytest.raises(ValueError, match=r"minerva.jsonl:1: the solution has no .boxed answer to take as gold"):
        load_problems(TASKS["minerva"], tmp_path)


def test_the_medical_file_holds_all_sources(tmp_path):
    row = {"question": "q", "options": {"A": "x", "B": "y", "C": None}, "answer": "y", "answer_idx": "B"}
    sources = {"MedQA_USLME_test": [row], "MedBullets_op4": [row], "MedBullets_op5": [{**row, "question": "other"}]}
    (tmp_path / "m1_eval_data.json").write_text(json.dumps(sources), encoding="utf-8")
    (problem,) = load_problems(TASKS["medqa"], tmp_path)
    assert (problem.gold, problem.options) == ("B", {"A": "x", "B": "y"})
    assert load_problems(TASKS["medbullets_5"], tmp_path)[0].question == "other"
    with pytest.raises(ValueError, match=r"0 sources look like 'NEJM'; it has MedQA_USLME_test, MedBullets_op4"):
        load_problems(TASKS["nejm"], tmp_path)


def test_a_document_keeps_its_id_in_another_order(tmp_path):
    rows = [{"problem": f"p{i}", "answer": "1"} for i in range(3)]
    ids = [one.id for one in load(write(tmp_path / "a.jsonl", *rows))]
    assert [one.id for one in load(write(tmp_path / "b.jsonl", *rows[::-1]))] == ids[::-1]
    assert len(load(tmp_path / "a.jsonl", limit=2)) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"problem": "p"},
            r"bad.jsonl:2: field 'answer' is missing.*needs problem or question, answer; .* has problem",
        ),
        ({"answer": "1"}, r"bad.jsonl:2: field 'problem' or 'question' is missing"),
        ({"problem": "p", "answer": " "}, r"bad.jsonl:2: field 'answer' is empty"),
        ({"problem": "", "answer": "1"}, r"bad.jsonl:2: field 'problem' is empty"),
        ({"problem": "first", "answer": "1"}, r"bad.jsonl:2: the same problem as .*bad.jsonl:1"),
        ("{broken", r"bad.jsonl:2: not valid JSON. Write one object per line"),
        ("[1]", r"bad.jsonl:2: not a JSON object but list"),
    ],
)
def test_a_wrong_row_is_named_by_line_and_field(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path / "bad.jsonl", {"problem": "first", "answer": "1"}, row))


def test_wrong_options_are_named(tmp_path):
    row = {"question": "q", "options": {"A": "x", "B": "y"}, "answer_idx": "C"}
    with pytest.raises(ValueError, match=r":1: the gold answer 'C' is none of the options A, B"):
        load(write(tmp_path / "choice.jsonl", row))


def test_an_empty_file_a_missing_file_and_no_limit(tmp_path):
    with pytest.raises(ValueError, match="has no problems"):
        load(write(tmp_path / "empty.jsonl"))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*gone.jsonl .--tasks.*problem and answer"):
        find_tasks(str(tmp_path / "gone.jsonl"))
    with pytest.raises(FileNotFoundError, match=r"aime24.jsonl is missing.*problem or question, answer"):
        load_problems(TASKS["aime24"], tmp_path)
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        load(write(tmp_path / "one.jsonl", {"problem": "p", "answer": "1"}), limit=0)


@pytest.mark.parametrize("name", ["aime24", "medqa"])
def test_without_a_network_the_local_file_that_would_serve_is_named(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(OSError, match=rf"could not be read from the hub.*DIR/{name}.jsonl .*--data_dir DIR"):
        load_problems(TASKS[name])


def test_documents_in_memory_may_not_repeat():
    rows = [Problem("a", "q", "1"), Problem("a", "q", "1")]
    with pytest.raises(ValueError, match="problem 1: the same problem as problem 0"):
        load_problems(Task("mine", problems=rows))


def test_repeats_of_a_benchmark_as_published_are_kept_apart(tmp_path):
    row = {"problem": "p", "answer": "1"}
    path = write(tmp_path / "mine.jsonl", row, row)
    first, second = load_problems(Task("mine", path=path, published_problems=2))
    assert second.id == f"{first.id}-2"
