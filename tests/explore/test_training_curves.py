import json

import pytest

from qsft.explore.training_curves import read_run, read_runs, run_figures, run_page


def write_run(directory, *, end=1.0, name="trainer_state.json", steps=(10, 20, 30)):
    lines = [
        {"step": s, "loss": end + 1 / s, "gamma": 0.5, "gamma_q25": 0.2, "gamma_q75": 0.9, "rescue": 0.1, "odd<b>": 1.0}
        for s in steps
    ]
    lines.append({"step": steps[-1], "train_runtime": 12.0, "total_flos": 1e9, "train_loss": 1.0})
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"log_history": lines}))
    return directory


def test_a_run_is_its_log(tmp_path):
    run = read_run(write_run(tmp_path / "mine"))
    assert run.name == "mine"
    assert run.metrics == ["loss", "gamma", "rescue", "odd<b>"]
    assert run.curve("loss") == ([10, 20, 30], [1.1, 1.05, pytest.approx(1 + 1 / 30)])


def test_an_unfinished_run_is_read_from_its_newest_checkpoint(tmp_path):
    write_run(tmp_path, name="checkpoint-9/trainer_state.json", steps=(9,))
    write_run(tmp_path, name="checkpoint-100/trainer_state.json", steps=(9, 100))
    assert read_run(tmp_path).curve("loss")[0] == [9, 100]


def test_metrics_are_grouped_and_unlisted_ones_are_drawn_too(tmp_path):
    figures = run_figures([read_run(write_run(tmp_path))])
    assert {heading: [metric for metric, _ in group] for heading, group in figures.items()} == {
        "Loss": ["loss"],
        "Trust in the label, γ": ["gamma"],
        "Student and teacher on the label": ["rescue"],
        "Other": ["odd<b>"],
    }
    low, high, mean = figures["Trust in the label, γ"][0][1].data
    assert (low.y[0], high.y[0], mean.y[0]) == (0.2, 0.9, 0.5)


def test_runs_share_a_figure_under_unique_names(tmp_path):
    directories = [write_run(tmp_path / "a" / "out", end=1.0), write_run(tmp_path / "b" / "out", end=2.0)]
    runs = read_runs(directories)
    assert [run.name for run in runs] == [str(directory) for directory in directories]
    traces = run_figures(runs)["Loss"][0][1].data
    assert [trace.y[0] for trace in traces] == [1.1, 2.1]
    assert traces[0].line.dash != traces[1].line.dash
    html = run_page(runs)
    assert "odd&lt;b&gt;" in html
    assert "odd<b>" not in html.replace("\\u003cb>", "")


def test_a_directory_without_a_log_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="trainer_state"):
        read_run(tmp_path)
    (tmp_path / "trainer_state.json").write_text("{}")
    with pytest.raises(ValueError, match="log_history"):
        read_run(tmp_path)
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    with pytest.raises(ValueError, match="no logged step"):
        read_run(tmp_path)
