import json
import shutil

import pytest

from qsft.cli import run_command


def run(*words):
    """`qsft explore WORDS`; the exit code."""
    return run_command(["explore", *map(str, words)])


@pytest.fixture(scope="module")
def models(tmp_path_factory, student, teacher, tokenizer):
    """Directories of student and teacher with the tokenizer."""
    root = tmp_path_factory.mktemp("models")
    for name, model in (("student", student), ("teacher", teacher)):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


def test_a_model_and_a_cache_are_enough(tmp_path, models, cache, capsys):
    out = tmp_path / "tokens.html"
    numbers = tmp_path / "tokens.json"
    inputs = ("--model_name_or_path", models / "student", "--teacher_cache", cache.path, "--num_documents", 3)
    files = ("--output_file", out, "--json", numbers)
    assert run("tokens", *inputs, *files, "--target", "kd_hybrid", "--c", "0.25") == 0
    data = json.loads(numbers.read_text())
    assert len(data["documents"]) == 3
    assert data["target"].startswith("γ = 0.75")
    assert str(out) in capsys.readouterr().out


def test_alignment_of_ones_own_documents_is_printed_and_written(tmp_path, models, cache, documents, capsys):
    rows = tmp_path / "rows.jsonl"
    strangers = [{"input_ids": [7, 8, 9], "labels": [-100, 8, 9]}]  # not in the cache: left out
    rows.write_text("\n".join(json.dumps(row) for row in [*documents, *strangers]))
    numbers = tmp_path / "a.json"
    words = ("--model_name_or_path", models / "student", "--teacher_cache", cache.path, "--dataset_name", rows)
    assert run("alignment", *words, "--output_file", tmp_path / "a.html", "--json", numbers) == 0
    assert json.loads(numbers.read_text())["documents"] == len(documents)
    assert "Agreement" in capsys.readouterr().out


@pytest.fixture
def recipe(tmp_path, models):
    """A recipe over forty conversations, with a teacher and no cache yet."""
    turns = [[f"w{i % 26} w{i % 7}", f"w{i % 5} w{i % 11} w{i % 3}"] for i in range(40)]
    rows = [{"prompt": f"{question} ", "completion": answer} for question, answer in turns]
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    teacher = shutil.copytree(models / "teacher", tmp_path / "teacher")
    lines = {
        "model_name_or_path": str(models / "student"),
        "teacher_model_name_or_path": str(teacher),
        "dataset_name": str(data),
        "output_dir": str(tmp_path / "out"),
        "teacher_cache": str(tmp_path / "cache"),
        "teacher_top_k": 8,
        "max_length": 32,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
    }
    path = tmp_path / "recipe.yaml"
    path.write_text("\n".join(f"{key}: {json.dumps(value)}" for key, value in lines.items()))
    return path


def test_a_recipe_is_explored_through_a_sample_of_its_documents(tmp_path, recipe, models):
    numbers = tmp_path / "a.json"
    assert run("alignment", recipe, "--num_documents", 4, "--output_file", tmp_path / "a.html", "--json", numbers) == 0
    first = json.loads(numbers.read_text())
    assert first["documents"] == 4
    # A larger draw adds to the sample's cache; the run's own is not begun.
    sample = next(path for path in tmp_path.rglob("*-sample") if path.is_dir())
    own = sample.with_name(sample.name.removesuffix("-sample"))
    assert run("alignment", recipe, "--num_documents", 6, "--output_file", tmp_path / "a.html", "--json", numbers) == 0
    assert json.loads(numbers.read_text())["documents"] == 6
    assert not own.exists()
    # The run's own cache is read and not added to, so the teacher is not needed.
    sample.rename(own)
    shutil.rmtree(tmp_path / "teacher")
    assert run("alignment", recipe, "--num_documents", 4, "--output_file", tmp_path / "a.html", "--json", numbers) == 0
    assert json.loads(numbers.read_text())["quadrants"] == first["quadrants"]
    files = ("--output_file", tmp_path / "t.html", "--json", numbers)
    assert run("tokens", recipe, "--num_documents", 2, "--target", "dft", *files) == 0
    assert json.loads(numbers.read_text())["target"].startswith("γ = p_y, π̃ = π_θ")


def test_documents_that_the_runs_cache_does_not_have_are_captured_beside_it(tmp_path, recipe, models):
    """The default cache of a teacher exists as soon as any other data were trained on with it."""
    from qsft import TeacherCache

    numbers = tmp_path / "a.json"
    own = tmp_path / "cache"
    assert run("alignment", recipe, "--num_documents", 4, "--output_file", tmp_path / "a.html", "--json", numbers) == 0
    sample = next(path for path in tmp_path.rglob("*-sample") if path.is_dir())
    sample.rename(own)
    before = len(TeacherCache(own))
    others = tmp_path / "data" / "train.jsonl"
    rows = [{"prompt": f"w{i} w3 ", "completion": f"w{i % 5} w9"} for i in range(40)]
    others.write_text("\n".join(map(json.dumps, rows)))
    assert run("alignment", recipe, "--num_documents", 4, "--output_file", tmp_path / "a.html", "--json", numbers) == 0
    assert json.loads(numbers.read_text())["documents"] == 4
    assert len(TeacherCache(own)) == before


def test_runs_are_drawn(tmp_path):
    state = {"log_history": [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    assert run("run", tmp_path, "--output_file", tmp_path / "run.html") == 0
    assert "loss" in (tmp_path / "run.html").read_text()


def test_missing_options_are_named(models, cache):
    with pytest.raises(ValueError, match="RECIPE"):
        run("tokens", "--model_name_or_path", models / "student")
    with pytest.raises(ValueError, match="--num_documents must be at least 1"):
        run("tokens", "--model_name_or_path", models / "student", "--teacher_cache", cache.path, "--num_documents", 0)
