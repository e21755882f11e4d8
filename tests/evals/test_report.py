"""Reports, pages and comparisons: numbers from known grades."""

import json
import time

import numpy as np
import pytest
from browser import INVISIBLE
from evaluations import make_result, task_settings, write_evaluation

from qsft.evals.compare import compare, run_names
from qsft.evals.grading.grade import Grade
from qsft.evals.report import make_report, summarize
from qsft.evals.results import Result, task_numbers
from qsft.evals.tasks import Problem
from qsft.inference.sampling import Generation

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


def test_missing_answers_and_timeouts_are_counted_separately():
    result = make_result("t", [[1], [0], [0]])
    grades = [result.grades[0], Grade(False), Grade(False, timed_out=True)]
    numbers = task_numbers(Result("t", 1, result.generations, grades))
    assert numbers["no_answer"] == numbers["grading_timeouts"] == pytest.approx(1 / 3)
    grades[1] = Grade(False, failure="TypeError: why")
    numbers = task_numbers(Result("t", 1, result.generations, grades))
    assert numbers["no_answer"] == 0
    assert numbers["grading_failures"] == pytest.approx(1 / 3)


def report_of(*results, model="model"):
    return make_report({one.task: one for one in results}, {one.task: task_settings(one, model) for one in results}, {})


def test_the_macro_average_and_the_table():
    report = report_of(make_result("a", TABLE), make_result("b", [[1], [1]]))
    assert report.summary["macro"]["acc"]["mean"] == pytest.approx(0.75)
    assert str(report).count("batching, processes and resuming do not change samples") == 1
    assert "| b | 2 | 1 | 100.0 [100.0, 100.0] |" in str(report)


def test_the_page_holds_text_as_text(tmp_path):
    report = report_of(make_result("a</script>", TABLE), model="a <title>")
    page = report.write(tmp_path).read_text(encoding="utf-8")
    assert "Evaluation of a &lt;title&gt;" in page
    assert 'http-equiv="Content-Security-Policy"' in page
    assert "a</script>" not in page
    assert len(page.encode()) < 3_000_000


def a_result(task="t", right=(1, 0, 0, 1)):
    """Two problems with two samples each: right, cut off, without an answer, right by the lenient score only."""
    problems = [Problem("p", "What is <b>1 + 1</b>?", "2"), Problem("q", "And 2 + 2?", "4", {"A": "4", "B": "5"})]
    finish = ("stop", "length", "stop", "stop")
    answers = ("2", "3", None, "4")
    generations = [Generation("pq"[i // 2], i % 2, f"</script>text {i}", 10 + i, finish[i]) for i in range(4)]
    grades = [Grade(bool(right[i]), i != 1, answers[i]) for i in range(4)]
    return Result(task, 2, generations, grades, problems)


@pytest.mark.browser
@pytest.mark.parametrize(
    "dark", [pytest.param(True, id="dark"), pytest.param(False, id="light", marks=pytest.mark.slow)]
)
def test_a_person_can_read_filter_and_search_responses(tmp_path, browser, dark):
    report = report_of(a_result(), a_result("u"))
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


@pytest.mark.browser
def test_bidirectional_and_zero_width_text_of_models_and_data_is_written_out(tmp_path, browser):
    """An override would show a wrong answer reversed, as a right one; a zero-width space would hide a difference."""
    evil = f"no{INVISIBLE}on"
    problems = [Problem("p", f"What {evil}?", f"2{evil}", {"A": f"4{evil}", "B": "5"})]
    generations = [Generation("p", 0, f"so \u202e21\u202c {evil}", 10, "stop")]
    grades = [Grade(False, False, evil)]
    report = report_of(Result(f"t{evil}", 1, generations, grades, problems), model=f"m{evil}")
    browser.open(report.write(tmp_path))
    assert wait_for(lambda: browser.text(".response pre") or None).startswith("so ⟨U+202E⟩21")
    assert "no⟨U+202E⟩⟨U+2066⟩" in browser.text(".problem")
    assert browser.invisible() == []


def wait_for(found, seconds=30):
    until = time.monotonic() + seconds
    while (value := found()) is None and time.monotonic() < until:
        time.sleep(0.05)
    return value


@pytest.mark.browser
def test_a_comparison_shows_what_changed_side_by_side(tmp_path, browser):
    for name, right in (("a", (1, 0, 0, 1)), ("b", (1, 1, 0, 1))):
        write_evaluation(tmp_path / name, [a_result(right=right)])
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


def write_run(directory, tasks, **changes):
    return write_evaluation(directory, [make_result(task, table) for task, table in tasks.items()], **changes)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs whose intervals overlap while their difference is certain; read only."""
    rng = np.random.default_rng(0)
    place = tmp_path_factory.mktemp("runs")
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
    write_evaluation(tmp_path / "a", [make_result("math500", TABLE, lenient=True)])
    comparison = compare([tmp_path / "a"], paper="numina_qwen_math_1p5b")
    assert comparison.summary["accuracy"]["a"]["math500"]["mean"] == 0.5
    assert comparison.summary["lenient"]["a"]["math500"]["mean"] == 1.0
    text = str(comparison)
    assert "| a, lenient | 100.0 [100.0, 100.0] |" in text
    assert "| Target-SFT (published) | 70.20 | 70.20 |" in text
    assert "29 of 30 rows" in text  # what is odd about the printed averages


def test_problems_that_some_run_lacks_are_left_out_and_counted(tmp_path):
    first = write_run(tmp_path / "x" / "eval", {"t": TABLE})
    second = write_run(tmp_path / "y" / "eval", {"t": TABLE[:3]})
    comparison = compare([first, second])
    assert comparison.summary["problems"] == {"t": 3}
    assert "t: 1 problems are left out" in str(comparison)
    assert run_names([first, second]) == ["x/eval", "y/eval"]


@pytest.fixture
def small(tmp_path):
    """Two runs of few problems."""
    return [write_run(tmp_path / "a", {"t": TABLE, "only_a": TABLE}), write_run(tmp_path / "b", {"t": TABLE})]


def test_settings_that_differ_are_named(small, tmp_path):
    assert compare(small).summary["notes"] == []
    third = write_run(tmp_path / "c", {"t": TABLE}, temperature=0.7)
    write_run(third, {"only_a": TABLE}, temperature=0.7, prompt="plain")
    text = str(compare([small[0], third]))
    assert "- Settings differ: t, only_a: temperature is 1.0 in a, 0.7 in c." in text
    assert "- Settings differ: only_a: prompt is boxed in a, plain in c." in text
    assert text.count("Settings differ") == 2


def test_a_summary_is_a_function_of_the_directory(small, monkeypatch):
    monkeypatch.setattr("qsft.evals.grading.pool.Judges.submit", None)  # nothing is graded
    first = summarize(small[0])
    first.write(small[0])
    assert summarize(small[0]).summary == first.summary
    (small[0] / "summary.json").unlink()
    assert summarize(small[0]).summary == first.summary


def test_tasks_of_other_weights_and_unfinished_ones_are_left_out_with_the_reason(tmp_path):
    write_run(tmp_path, {"old": TABLE})
    write_evaluation(tmp_path, [make_result("new", TABLE)], weights="others")
    report = summarize(tmp_path)
    assert list(report.results) == ["new"]
    assert "old is left out: other weights answered it." in report.notes()
    (tmp_path / "grades" / "new.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no graded evaluation\. .*new: it is not finished"):
        summarize(tmp_path)


def test_the_figure_of_lengths_has_bars_quartiles_and_an_accuracy_line(small):
    comparison = compare(small)
    bars, line = comparison.figures()[1].figure.data
    lengths = comparison.summary["lengths"]["a"]
    assert bars.type == "bar"
    assert list(bars.x) == ["a", "b"]
    assert bars.y[0] == lengths["mean"]
    assert bars.error_y.array[0] == lengths["p75"] - lengths["mean"]
    assert bars.error_y.arrayminus[0] == lengths["mean"] - lengths["p25"]
    assert (line.mode, line.yaxis) == ("lines+markers", "y2")
    assert line.y[0] == pytest.approx(50)


def test_bad_comparisons_raise(small, tmp_path):
    with pytest.raises(ValueError, match="needs two runs"):
        compare(small[:1])
    with pytest.raises(ValueError, match="given twice"):
        compare([small[0], small[0]])
    with pytest.raises(FileNotFoundError, match="has no graded evaluation"):
        compare([small[0], tmp_path])
    other = write_run(tmp_path / "c", {"other": TABLE})
    with pytest.raises(ValueError, match=r"no task in common.*c has other"):
        compare([small[0], other])
    bad = tmp_path / "bad.json"
    bad.write_text('{"SFT": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match=r"not a table of published numbers. It should read"):
        compare(small, bad)
