"""Reports, pages and comparisons: numbers from known grades."""

import json
import time

import numpy as np
import pytest

from qsft.evals.comparison import compare, run_names
from qsft.evals.eval_directory import EvalDirectory
from qsft.evals.grade import Grade
from qsft.evals.protocol import Protocol
from qsft.evals.report import make_report
from qsft.evals.stats import Result, task_numbers
from qsft.evals.tasks import Problem
from qsft.files import write_lines
from qsft.inference.sampling import Generation


def make_result(task, correct, tokens=10):
    """A Result from a table of booleans [problem, sample]; wrong answers are all `w`."""
    generations, grades = [], []
    for problem, row in enumerate(correct):
        for sample, right in enumerate(row):
            finish = "stop" if right else "length"
            generations.append(Generation(f"d{problem}", sample, "", tokens * (1 if right else 2), finish))
            grades.append(Grade(bool(right), bool(right), "r" if right else "w"))
    return Result(task, len(correct[0]), generations, grades)


TABLE = [[1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]]


def test_the_numbers_of_a_task():
    numbers = task_numbers(make_result("t", TABLE))
    assert (numbers["problems"], numbers["samples"]) == (4, 4)
    assert numbers["acc"]["mean"] == pytest.approx(0.5)
    assert numbers["acc"]["se"] == pytest.approx(np.std([0.75, 0.25, 0, 1], ddof=1) / 2)
    assert numbers["pass_at"] == {"1": pytest.approx(0.5), "2": pytest.approx((1 + 0.5 + 0 + 1) / 4), "4": 0.75}
    assert numbers["majority"] == 0.5
    assert numbers["truncated"] == 0.5
    assert numbers["runs"] == {"std": 0.0, "min": 0.5, "max": 0.5}
    assert numbers["tokens"] == {"mean": 15, "p25": 10, "p50": 15, "p75": 20, "correct": 10, "wrong": 20}


def test_no_answer_and_timeouts_are_told_apart():
    result = make_result("t", [[1], [0], [0]])
    grades = [result.grades[0], Grade(False), Grade(False, timed_out=True)]
    numbers = task_numbers(Result("t", 1, result.generations, grades))
    assert numbers["no_answer"] == numbers["grading_timeouts"] == pytest.approx(1 / 3)
    grades[1] = Grade(False, failure="TypeError: why")
    numbers = task_numbers(Result("t", 1, result.generations, grades))
    assert numbers["no_answer"] == 0
    assert numbers["grading_failures"] == pytest.approx(1 / 3)


def test_the_macro_average_and_the_table():
    report = make_report(
        [make_result("a", TABLE), make_result("b", [[1], [1]])], {}, {"a": ["note"], "b": ["note"]}, {}
    )
    assert report.summary["macro"]["acc"]["mean"] == pytest.approx(0.75)
    assert str(report).count("note") == 1
    assert "| b | 2 | 1 | 100.0 [100.0, 100.0] |" in str(report)


def test_the_page_holds_text_as_text(tmp_path):
    report = make_report([make_result("a</script>", TABLE)], {"model": "a <title>"}, {}, {})
    page = report.write(tmp_path).read_text(encoding="utf-8")
    assert "Evaluation of a &lt;title&gt;" in page
    assert 'http-equiv="Content-Security-Policy"' in page
    assert "a</script>" not in page
    assert len(page.encode()) < 3_000_000


def a_result(task="t", right=(1, 0, 0, 1)):
    """Two problems with two samples each: right, cut off, without an answer, right by the lenient score only."""
    problems = [Problem("p", "What is <b>1 + 1</b>?", "2"), Problem("q", "And 2 + 2?", "4", {"A": "4", "B": "5"})]
    finish, answers = ("stop", "length", "stop", "stop"), ("2", "3", None, "4")
    generations = [Generation("pq"[i // 2], i % 2, f"</script>text {i}", 10 + i, finish[i]) for i in range(4)]
    grades = [Grade(bool(right[i]), i != 1, answers[i]) for i in range(4)]
    return Result(task, 2, generations, grades, problems)


@pytest.mark.browser
@pytest.mark.parametrize(
    "dark", [pytest.param(True, id="dark"), pytest.param(False, id="light", marks=pytest.mark.slow)]
)
def test_a_person_can_read_filter_and_search_responses(tmp_path, browser, dark):
    report = make_report([a_result(), a_result("u")], {"model": "m"}, {}, {})
    browser.open(report.write(tmp_path), dark=dark)
    assert len(browser.all(".plot .main-svg")) >= 3
    assert browser.text("#reader-count") == "4 problems, 8 responses · page 1 of 1"
    assert "What is <b>1 + 1</b>?" in browser.text(".problem")
    kept = {"wrong": "4", "none": "2", "cut": "2", "differ": "2", "right": "4"}
    for name, count in kept.items():
        browser.js("const s = arguments[0]; s.value = arguments[1]; s.dispatchEvent(new Event('change'))",
                   browser.one("#reader-filter"), name)  # fmt: skip
        assert wait_for(lambda count=count: f", {count} responses" in browser.text("#reader-count") or None)
    browser.one("#reader-search").send_keys("text 3")
    assert wait_for(lambda: "2 problems, 2 responses" in browser.text("#reader-count") or None)
    browser.one(".response summary").click()
    assert "</script>text" in browser.text(".response pre")


def wait_for(found, seconds=30):
    until = time.monotonic() + seconds
    while (value := found()) is None and time.monotonic() < until:
        time.sleep(0.05)
    return value


@pytest.mark.browser
def test_a_comparison_shows_what_changed_side_by_side(tmp_path, browser):
    for name, right in (("a", (1, 0, 0, 1)), ("b", (1, 1, 0, 1))):
        files, result = EvalDirectory(tmp_path / name), a_result(right=right)
        write_lines(files.path / "generations" / "t.jsonl", [one.record() for one in result.generations])
        files.write_result(result)
    comparison = compare([tmp_path / "a", tmp_path / "b"])
    assert comparison.summary["lengths"]["a"] == {
        "mean": 11.5,
        "p25": 10.75,
        "p50": 11.5,
        "p75": 12.25,
        "truncated": 0.25,
    }
    assert "| b | 75.0 | 12 | 11–12 | 25.0 |" in str(comparison)
    browser.open(comparison.write(tmp_path / "out"))
    assert len(browser.all(".plot .main-svg")) >= 3
    assert browser.text("#reader-count") == "1 problems, 4 responses · page 1 of 1"
    assert [side.text.splitlines()[0] for side in browser.all(".side")] == ["a: 50 % of 2 right", "b: 100 % of 2 right"]


def write_run(directory, tasks):
    for task, table in tasks.items():
        EvalDirectory(directory).write_result(make_result(task, table))
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs whose intervals overlap while their difference is certain; read only."""
    rng, place = np.random.default_rng(0), tmp_path_factory.mktemp("runs")
    difficulty = rng.beta(0.5, 0.5, size=(200, 1))
    a = rng.random((200, 16)) < difficulty
    b = rng.random((200, 16)) < np.clip(difficulty + 0.04, 0, 1)
    return write_run(place / "a", {"t": a, "only_a": a}), write_run(place / "b", {"t": b}), a, b


def test_a_paired_comparison_by_problem(runs):
    run_a, run_b, a, b = runs
    summary = compare([run_a, run_b]).summary
    found = summary["difference"]["b"]["t"]
    assert found["mean"] == pytest.approx(b.mean() - a.mean())
    assert found["se"] == pytest.approx((b.mean(1) - a.mean(1)).std(ddof=1) / np.sqrt(200))
    assert found["low"] > 0
    unpaired = summary["accuracy"]
    assert unpaired["b"]["t"]["low"] < unpaired["a"]["t"]["high"]  # their own intervals overlap


def test_the_command_writes_table_and_plot_with_published_numbers(runs, tmp_path, command, capsys):
    paper = tmp_path / "paper.json"
    paper.write_text(json.dumps({"rows": {"SFT": {"t": 50.25, "else": 1.0}}}), encoding="utf-8")
    assert command("compare", runs[0], runs[1], "--paper", paper, "--output_dir", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "| SFT (published) | 50.25 | 50.25 |" in out
    assert "paired by problem" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "comparison.html", "comparison.json", "comparison.md"]  # fmt: skip
    assert json.loads((tmp_path / "out" / "comparison.json").read_text("utf-8"))["baseline"] == "a"


def test_the_lenient_score_stands_beside_published_numbers(tmp_path):
    result = make_result("math500", TABLE)
    grades = [Grade(grade.correct, True, grade.answer) for grade in result.grades]
    EvalDirectory(tmp_path / "a").write_result(Result("math500", result.samples, result.generations, grades))
    comparison = compare([tmp_path / "a"], paper="numina_qwen_math_1p5b")
    assert comparison.summary["accuracy"]["a"]["math500"]["mean"] == 0.5
    assert comparison.summary["lenient"]["a"]["math500"]["mean"] == 1.0
    said = str(comparison)
    assert "| a, lenient | 100.0 [100.0, 100.0] |" in said
    assert "| Target-SFT (published) | 70.20 | 70.20 |" in said
    assert "29 of 30 rows" in said  # what is odd about the printed averages


def test_problems_that_not_every_run_has_are_left_out_and_said(tmp_path):
    first = write_run(tmp_path / "x" / "eval", {"t": TABLE})
    second = write_run(tmp_path / "y" / "eval", {"t": TABLE[:3]})
    comparison = compare([first, second])
    assert comparison.summary["problems"] == {"t": 3}
    assert "t: 1 problems that not every run has are left out" in str(comparison)
    assert run_names([first, second]) == ["x/eval", "y/eval"]


@pytest.fixture
def small(tmp_path):
    """Two runs of few problems."""
    return [write_run(tmp_path / "a", {"t": TABLE, "only_a": TABLE}), write_run(tmp_path / "b", {"t": TABLE})]


def test_settings_that_differ_are_said(small, tmp_path):
    assert compare(small).summary["notes"] == []
    third = write_run(tmp_path / "c", {"t": TABLE, "only_a": TABLE})
    about = {"backend": "transformers", "dtype": "float32"}
    for run, temperature, prompt in ((small[0], 1.0, "boxed"), (third, 0.7, "plain")):
        protocols = {"t": Protocol(temperature=temperature), "only_a": Protocol(temperature=temperature, prompt=prompt)}
        settings = {
            task: {"protocol": one.record(), "about": about, "made_by": {}, "limit": 4}
            for task, one in protocols.items()
        }
        EvalDirectory(run).write_settings(settings)
    said = str(compare([small[0], third]))
    assert "- Not measured alike: only_a, t: temperature is 1.0 in a, 0.7 in c." in said
    assert "- Not measured alike: only_a: prompt is boxed in a, plain in c." in said
    assert said.count("Not measured alike") == 2
    assert "Not measured alike" not in str(compare(small))  # b does not say how it was made


def test_bad_comparisons_are_refused(small, tmp_path):
    with pytest.raises(ValueError, match="needs two runs"):
        compare(small[:1])
    with pytest.raises(ValueError, match="given twice"):
        compare([small[0], small[0]])
    with pytest.raises(FileNotFoundError, match="holds no graded evaluation"):
        compare([small[0], tmp_path])
    other = write_run(tmp_path / "c", {"other": TABLE})
    with pytest.raises(ValueError, match=r"no task in common.*c has other"):
        compare([small[0], other])
    bad = tmp_path / "bad.json"
    bad.write_text('{"SFT": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"not a table of published numbers. It should read"):
        compare(small, bad)
